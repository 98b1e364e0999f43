// The version of ctxpar, and the only place where it is written: CMake reads it from these lines.
//
// Everything public sits in the inline namespace `ctxpar::v0_1`, named after the major and minor version, so that two
// versions of the library can live in one program.
#pragma once

#define CTXPAR_VERSION_MAJOR 0
#define CTXPAR_VERSION_MINOR 1
#define CTXPAR_VERSION_PATCH 0

// Host work is done when its call returns, so its stream holds nothing and is made from nothing.
#include <type_traits>

#include <doctest/doctest.h>

#include <ctxpar/core/stream.hpp>

static_assert(std::is_empty_v<ctxpar::host_stream> && std::is_trivially_copyable_v<ctxpar::host_stream>);
static_assert(std::is_default_constructible_v<ctxpar::host_stream>);

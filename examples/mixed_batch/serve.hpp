// One rank of the engine.
#pragma once

#include <ctxpar/comm/local.hpp>

#include "options.hpp"
#include "watch.hpp"

namespace demo {

// Serves all requests, step by step; every rank calls it.
void serve(ctxpar::local_communicator& world, const options& given, watch& observer);

} // namespace demo

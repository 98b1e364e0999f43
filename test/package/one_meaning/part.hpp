// What both objects of the program do; each object does it in a namespace of its own, PART.
#pragma once

#include <memory>
#include <string>

#include <ctxpar/comm/local.hpp>

namespace part_a {
std::unique_ptr<ctxpar::local_world> make_world(ctxpar::check_level checks);
std::string outcome(ctxpar::local_world& world);
std::string layout();
} // namespace part_a

namespace part_b {
std::unique_ptr<ctxpar::local_world> make_world(ctxpar::check_level checks);
std::string outcome(ctxpar::local_world& world);
std::string layout();
} // namespace part_b

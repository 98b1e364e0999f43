// What the example prints: tables for a person and one JSON line a configuration for a program.
#pragma once

#include <vector>

#include "engine.hpp"
#include "problem.hpp"
#include "reference.hpp"
#include "verdict.hpp"

namespace demo {

// What is prefilled and how rows are split; printed before the long work.
void print_problem(const problem& all);
void print_splits(const problem& all);
void print_reference(const problem& all, const reference& right);
void print_verdicts(const problem& all, const std::vector<record>& runs, const std::vector<verdict>& verdicts);
void print_json(const problem& all, const reference& right, const record& run, const verdict& one);

} // namespace demo

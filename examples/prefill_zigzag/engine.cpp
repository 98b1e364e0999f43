#include "engine.hpp"

#include <algorithm>

namespace demo {

double record::seconds() const {
    double begin = ranks.front().begin;
    double end = ranks.front().end;
    for (const rank_record& each : ranks) {
        begin = std::min(begin, each.begin);
        end = std::max(end, each.end);
    }
    return end - begin;
}

} // namespace demo

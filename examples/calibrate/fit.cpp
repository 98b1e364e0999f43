#include "fit.hpp"

#include <algorithm>
#include <cstddef>

namespace demo {

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

line fit_line(std::vector<point> points) {
    std::sort(points.begin(), points.end(), [](const point& a, const point& b) { return a.x < b.x; });
    std::vector<double> slopes, rests;
    for (std::size_t i = 0; i < points.size(); ++i)
        for (std::size_t j = i + 1; j < points.size(); ++j)
            if (points[j].x >= 2 * points[i].x && points[j].x > 0)
                slopes.push_back((points[j].us - points[i].us) / (points[j].x - points[i].x));
    line fitted;
    fitted.slope = std::max(0.0, median(slopes));
    for (std::size_t i = 0; i < (points.size() + 1) / 2; ++i)
        rests.push_back(points[i].us - points[i].x * fitted.slope);
    fitted.fixed = std::max(0.0, median(rests));
    return fitted;
}

} // namespace demo

// The asynchronous copies of one thread, in groups, which are done when the thread waits for them and not before.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "races.hpp"

namespace simt {

class late_copies {
public:
    // The copy's place is NaN until the copy is done.
    void add(void* to, const void* from, std::size_t bytes) {
        races::writes(to, bytes);
        std::memset(to, 0xff, bytes);
        copies_.push_back({to, from, bytes});
    }

    // What was added since the last call is a group.
    void commit() { ends_.push_back(copies_.size()); }

    // Does the copies of all groups but the last `keep`.
    void wait(std::size_t keep) {
        if (ends_.size() <= keep) return;
        const std::size_t groups = ends_.size() - keep;
        const std::size_t end = ends_[groups - 1];
        for (; done_ < end; ++done_) {
            const copy& each = copies_[done_];
            races::reads(each.from, each.bytes);
            races::writes(each.to, each.bytes);
            std::memcpy(each.to, each.from, each.bytes);
        }
        ends_.erase(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(groups));
        if (2 * done_ >= copies_.size()) drop_done();
    }

    void clear() {
        copies_.clear();
        ends_.clear();
        done_ = 0;
    }

private:
    struct copy {
        void* to;
        const void* from;
        std::size_t bytes;
    };

    void drop_done() {
        copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(done_));
        for (std::size_t& end : ends_) end -= done_;
        done_ = 0;
    }

    std::vector<copy> copies_;
    std::size_t done_ = 0;          // of copies_, from its begin
    std::vector<std::size_t> ends_; // of groups that are not done, in copies_
};

} // namespace simt

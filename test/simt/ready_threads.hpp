// Which threads of a block can go on, and which of them does so next.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "block.hpp"

namespace simt {

// Numbers that depend on a seed only (SplitMix64): little to seed and to ask, which is done for every block and switch.
class seeded_numbers {
public:
    using result_type = std::uint64_t;

    explicit seeded_numbers(std::uint64_t seed) : state_(seed) {}
    static constexpr result_type min() { return 0; }
    static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

    result_type operator()() {
        state_ += 0x9e3779b97f4a7c15U;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9U;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebU;
        return mixed ^ mixed >> 31;
    }
    // 0 to count - 1
    unsigned below(unsigned count) { return static_cast<unsigned>(((*this)() >> 32) * count >> 32); }

private:
    std::uint64_t state_;
};

// A thread is added when it can go on, and is out when it was taken; adding and taking cost the same however many
// there are.
class ready_threads {
public:
    explicit ready_threads(thread_order order) : order_(order) {}

    // For another block: no thread is ready.
    void start(std::uint64_t seed) {
        random_ = seeded_numbers(seed);
        first_ = count_ = warps_ = 0;
        warp_ = random_.below(most / warp_size);
        lanes_.fill(0);
    }

    bool empty() const { return count_ == 0; }

    void add(unsigned rank) {
        if (order_ == thread_order::one_warp) {
            lanes_[rank / warp_size] |= 1U << rank % warp_size;
            warps_ |= 1U << rank / warp_size;
        } else {
            queue_[(first_ + count_) % most] = static_cast<std::uint16_t>(rank);
        }
        ++count_;
    }
    void add_lanes(unsigned warp, std::uint32_t lanes) {
        for (; lanes != 0; lanes &= lanes - 1) add(warp * warp_size + static_cast<unsigned>(std::countr_zero(lanes)));
    }

    // The rank of a thread that is ready; there must be one.
    unsigned take() {
        --count_;
        switch (order_) {
        case thread_order::any: {
            const unsigned index = random_.below(count_ + 1);
            const unsigned rank = queue_[index];
            queue_[index] = queue_[count_];
            return rank;
        }
        case thread_order::one_warp:
            return take_of_warp();
        case thread_order::first_in:
            break;
        }
        return queue_[first_++ % most];
    }

private:
    static constexpr unsigned most = 1024; // threads of a block

    unsigned take_of_warp() {
        if (lanes_[warp_] == 0) warp_ = any_warp();
        std::uint32_t& lanes = lanes_[warp_];
        const unsigned turn = random_.below(warp_size);
        const unsigned lane =
            (static_cast<unsigned>(std::countr_zero(std::rotr(lanes, static_cast<int>(turn)))) + turn) % warp_size;
        lanes &= ~(1U << lane);
        if (lanes == 0) warps_ &= ~(1U << warp_);
        return warp_ * warp_size + lane;
    }
    unsigned any_warp() {
        std::uint32_t warps = warps_;
        for (unsigned skip = random_.below(static_cast<unsigned>(std::popcount(warps))); skip > 0; --skip)
            warps &= warps - 1;
        return static_cast<unsigned>(std::countr_zero(warps));
    }

    thread_order order_;
    seeded_numbers random_{0};
    unsigned count_ = 0;
    std::array<std::uint16_t, most> queue_{}; // from first_ on, in a ring; with thread_order::any from 0 on
    unsigned first_ = 0;
    std::array<std::uint32_t, most / warp_size> lanes_{}; // with thread_order::one_warp: of each warp
    std::uint32_t warps_ = 0;                             // those with lanes
    unsigned warp_ = 0;
};

} // namespace simt

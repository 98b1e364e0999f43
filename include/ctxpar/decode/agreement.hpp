// What must be the same on every rank of a group, fact by fact, so that ranks that were made differently are told in
// what they differ. Compared once, before the first plan; plans compare the digest of all of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/merge/merge.hpp>

namespace ctxpar::inline v0_1::detail {

// The facts of one rank, in the order in which all ranks state them.
class agreed_facts {
public:
    // The name has static storage. Where it differs between ranks, it is what they differ in.
    agreed_facts& add(const char* name, std::uint64_t value) {
        facts_.at(count_++) = {name, value};
        return *this;
    }
    agreed_facts& add_signed(const char* name, std::int64_t value) {
        return add(name, static_cast<std::uint64_t>(value));
    }
    // A fact that a word tells: the name of all words is the word.
    agreed_facts& add_word(const char* word) {
        digest sum;
        for (const char letter : std::string_view(word)) sum.add(static_cast<unsigned char>(letter));
        return add(word, sum.value());
    }

    // Of the values; never 0.
    std::uint64_t digest_of_all() const {
        digest sum;
        for (std::size_t i = 0; i < count_; ++i) sum.add(facts_[i].value);
        return sum.value() | 1U;
    }

    // Throws comm_error "digest" on every rank of the group where a fact differs. Collective, one call for each fact;
    // nothing for a group of one, or one that checks nothing. Returns false where facts could not be compared yet.
    template <communicator C>
    bool agree(C* group, typename C::stream_type stream) const {
        if (group_size(group) <= 1 || group->checks() == check_level::off) return true;
        bool compared = true;
        for (std::size_t i = 0; i < count_; ++i) {
            if constexpr (requires { bool(group->agree(std::uint64_t{}, "", stream)); }) {
                compared &= group->agree(facts_[i].value, facts_[i].name, stream);
            } else {
                group->agree(facts_[i].value, facts_[i].name, stream);
            }
        }
        return compared;
    }

private:
    struct fact {
        const char* name = nullptr;
        std::uint64_t value = 0;
    };
    std::array<fact, 40> facts_{};
    std::size_t count_ = 0;
};

constexpr const char* queries_of(scalar_type type) {
    switch (type) {
    case scalar_type::f32:
        return "queries of f32";
    case scalar_type::bf16:
        return "queries of bf16";
    case scalar_type::f16:
        return "queries of f16";
    default:
        return "queries of another type";
    }
}
constexpr const char* cache_of(scalar_type type) {
    switch (type) {
    case scalar_type::f32:
        return "a cache of f32";
    case scalar_type::bf16:
        return "a cache of bf16";
    case scalar_type::f16:
        return "a cache of f16";
    case scalar_type::e4m3:
        return "a cache of fp8_e4m3";
    case scalar_type::e5m2:
        return "a cache of fp8_e5m2";
    default:
        return "a cache of another type";
    }
}

} // namespace ctxpar::inline v0_1::detail

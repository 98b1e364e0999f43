// Linked into a test, this carries out the matrix unit's instructions where the processor refuses them: it is told of
// each by SIGILL, does what the architecture says, and goes on behind it. So the very instructions that a processor
// with the unit runs are run everywhere that has AVX-512, whose vectors surround them. Rows are copied by code that the
// address sanitizer sees, unlike those of the real instructions.
#include <array>
#include <bit>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <ctxpar/backend/cpu/isa.hpp>

#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>

namespace {

constexpr int most_rows = 16;
constexpr int row_bytes = 64;

struct tile_layout {
    std::uint8_t palette;
    std::uint8_t start_row;
    std::uint8_t reserved[14];
    std::uint16_t bytes[16];
    std::uint8_t rows[16];
};
static_assert(sizeof(tile_layout) == 64);

struct tile {
    unsigned char at[most_rows][row_bytes];
};

thread_local tile_layout layout{};
thread_local std::array<tile, 8> tiles{};

[[noreturn]] void refuse(const char* what) {
    std::fprintf(stderr, "emulated matrix unit: %s\n", what);
    std::abort();
}

void check_tile(int t) {
    if (layout.palette != 1) refuse("tiles are used before they are laid out");
    if (t > 7 || layout.rows[t] == 0 || layout.bytes[t] == 0) refuse("a tile that has no layout");
}

void set_layout(const tile_layout& wanted) {
    if (wanted.palette > 1) refuse("a palette other than 0 and 1");
    if (wanted.start_row != 0) refuse("a start row");
    for (int t = 0; t < 16; ++t)
        if (wanted.rows[t] > (t < 8 ? most_rows : 0) || wanted.bytes[t] > (t < 8 ? row_bytes : 0))
            refuse("a layout of too many rows, bytes or tiles");
    for (const std::uint8_t byte : wanted.reserved)
        if (byte != 0) refuse("reserved bytes of the layout");
    layout = wanted;
    tiles = {};
}

// While it lives, numbers below the normal ones count as zero and results there become zero, as in the unit.
class without_subnormals {
public:
    without_subnormals() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | 0x8040U); }
    ~without_subnormals() { __builtin_ia32_ldmxcsr(before_); }
    without_subnormals(const without_subnormals&) = delete;
    without_subnormals& operator=(const without_subnormals&) = delete;

private:
    unsigned before_;
};

// The even and odd numbers of a tile of bf16.
struct numbers {
    float even[most_rows][row_bytes / 4];
    float odd[most_rows][row_bytes / 4];

    explicit numbers(const tile& from) {
        for (int r = 0; r < most_rows; ++r) {
            for (int n = 0; n < row_bytes / 4; ++n) {
                std::uint32_t both = 0;
                std::memcpy(&both, from.at[r] + 4 * n, sizeof(both));
                even[r][n] = std::bit_cast<float>(both << 16);
                odd[r][n] = std::bit_cast<float>(both & 0xffff0000U);
            }
        }
    }
};

// sums += first x second; even and odd products are added up apart, as the architecture has it.
__attribute__((target("avx2,fma"))) void multiply_numbers(tile& sums, const numbers& first, const numbers& second) {
    const without_subnormals flush;
    constexpr int side = row_bytes / 4;
    for (int m = 0; m < most_rows; ++m) {
        float even[side] = {};
        float odd[side] = {};
        for (int k = 0; k < side; ++k) {
            for (int n = 0; n < side; ++n) {
                even[n] = __builtin_fmaf(first.even[m][k], second.even[k][n], even[n]);
                odd[n] = __builtin_fmaf(first.odd[m][k], second.odd[k][n], odd[n]);
            }
        }
        float sum[side];
        std::memcpy(sum, sums.at[m], sizeof(sum));
        for (int n = 0; n < side; ++n) sum[n] += even[n] + odd[n];
        std::memcpy(sums.at[m], sum, sizeof(sum));
    }
}

void multiply(int sums, int first, int second) {
    for (const int t : {sums, first, second}) check_tile(t);
    if (sums == first || sums == second || first == second) refuse("a product of tiles that are not three");
    for (const int t : {sums, first, second})
        if (layout.rows[t] != most_rows || layout.bytes[t] != row_bytes)
            refuse("a product of tiles that are not whole");
    multiply_numbers(tiles[static_cast<std::size_t>(sums)], numbers(tiles[static_cast<std::size_t>(first)]),
                     numbers(tiles[static_cast<std::size_t>(second)]));
}

// An instruction of the unit at the instruction pointer, if there is one.
class instruction {
public:
    explicit instruction(greg_t* registers)
        : registers_(registers), at_(reinterpret_cast<const unsigned char*>(registers[REG_RIP])) {}

    // Carries it out and steps over it; false where it's none of the unit's.
    bool run() {
        if (at_[0] != 0xc4 || (at_[1] & 0x1f) != 2 || (at_[2] & 0x80) != 0) return false;
        const int prefix = at_[2] & 3; // none, 66, F3, F2
        const int opcode = at_[3];
        second_ = ~at_[2] >> 3 & 15;
        mod_ = at_[4] >> 6;
        reg_ = (at_[4] >> 3 & 7) | ((at_[1] & 0x80) != 0 ? 0 : 8);
        rm_ = at_[4] & 7;
        length_ = 5;
        if (opcode == 0x49) {
            configure(prefix);
        } else if (opcode == 0x4b && prefix != 0) {
            move(prefix == 2);
        } else if (opcode == 0x5c && prefix == 2 && mod_ == 3) {
            multiply(reg_, rm_, second_);
        } else {
            return false;
        }
        registers_[REG_RIP] += length_;
        return true;
    }

private:
    void configure(int prefix) {
        if (mod_ == 3 && prefix == 0) {
            set_layout({});
        } else if (mod_ == 3 && prefix == 3) {
            check_tile(reg_);
            tiles[static_cast<std::size_t>(reg_)] = {};
        } else if (prefix == 0) {
            tile_layout wanted;
            std::memcpy(&wanted, reinterpret_cast<const void*>(address(nullptr)), sizeof(wanted));
            set_layout(wanted);
        } else {
            refuse("an instruction that the kernels do not use");
        }
    }

    void move(bool stores) {
        check_tile(reg_);
        if (mod_ == 3 || rm_ != 4) refuse("a tile that is moved without base and index");
        std::uint64_t stride = 0;
        std::uint64_t row = address(&stride);
        const auto bytes = static_cast<std::size_t>(layout.bytes[reg_]);
        tile& own = tiles[static_cast<std::size_t>(reg_)];
        if (!stores) own = {};
        for (int r = 0; r < layout.rows[reg_]; ++r, row += stride) {
            if (stores)
                std::memcpy(reinterpret_cast<void*>(row), own.at[r], bytes);
            else
                std::memcpy(own.at[r], reinterpret_cast<const void*>(row), bytes);
        }
    }

    // What the operand in memory says; an index is a stride where one is wanted.
    std::uint64_t address(std::uint64_t* stride) {
        int base = rm_;
        std::uint64_t result = 0;
        if (rm_ == 4) {
            const int sib = at_[length_++];
            base = sib & 7;
            const int index = (sib >> 3 & 7) | ((at_[1] & 0x40) != 0 ? 0 : 8);
            const std::uint64_t scaled = index == 4 ? 0 : value(index) << (sib >> 6);
            if (stride == nullptr)
                result += scaled;
            else
                *stride = scaled;
        }
        if (mod_ == 0 && base == 5) refuse("an operand relative to the instruction");
        result += value(base | ((at_[1] & 0x20) != 0 ? 0 : 8));
        if (mod_ == 1) {
            result += static_cast<std::uint64_t>(std::int64_t(static_cast<signed char>(at_[length_])));
            length_ += 1;
        } else if (mod_ == 2) {
            std::int32_t far = 0;
            std::memcpy(&far, at_ + length_, sizeof(far));
            result += static_cast<std::uint64_t>(std::int64_t(far));
            length_ += 4;
        }
        return result;
    }
    std::uint64_t value(int number) const {
        constexpr int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                   REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
        return static_cast<std::uint64_t>(registers_[order[number]]);
    }

    greg_t* registers_;
    const unsigned char* at_;
    int mod_ = 0;
    int reg_ = 0;
    int rm_ = 0;
    int second_ = 0;
    int length_ = 0;
};

void on_illegal_instruction(int, siginfo_t*, void* context) {
    greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    if (!instruction(registers).run()) refuse("an illegal instruction that is none of the unit's");
    while (instruction(registers).run()) {
    } // those that follow at once
}

const bool installed = [] {
    if (ctxpar::cpu::may_use_amx() || ctxpar::cpu::best_vector_isa() != ctxpar::cpu::isa::avx512) return false;
    struct sigaction action {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGILL, &action, nullptr) != 0) return false;
    return ctxpar::cpu::amx_is_emulated = true;
}();

} // namespace

#endif

// The decode problem that all programs of this benchmark solve, as files and arguments state it, and how each times it.
//
// 64 query heads and 8 KV heads of 128, one query row a request. A program holds `caches` KV caches, like the layers of
// a model, and a step decodes over one of them, then over the next, so that each step reads memory that the last-level
// cache no longer has. Keys and values are rows of one pool of random vectors, which problem.py writes; the newest
// token of a request has a key and a value of its own. All numbers are bf16 numbers in the normal range of f16: every
// program has exactly the same inputs, in either type.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>

namespace peers {

constexpr std::int64_t query_heads = 64;
constexpr std::int64_t kv_heads = 8;
constexpr std::int64_t width = 128;

struct options {
    std::string folder;       // where the inputs lie and the output goes
    std::string type;         // of the cache: bf16 or f16
    std::string out;          // name of the file of outputs in the folder
    std::int64_t batch = 1;   // requests
    std::int64_t tokens = 1;  // of each request, the newest included
    std::int64_t caches = 1;  // caches that steps take turns in
    std::int64_t threads = 2; // the calling one included
    double seconds = 1.0;     // of timed steps, at least
};

// --name value, for each field of the options.
inline options parse(int argc, char** argv) {
    options given;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string_view name = argv[i];
        const char* value = argv[i + 1];
        if (name == "--folder")
            given.folder = value;
        else if (name == "--type")
            given.type = value;
        else if (name == "--out")
            given.out = value;
        else if (name == "--batch")
            given.batch = std::atoll(value);
        else if (name == "--tokens")
            given.tokens = std::atoll(value);
        else if (name == "--caches")
            given.caches = std::atoll(value);
        else if (name == "--threads")
            given.threads = std::atoll(value);
        else if (name == "--seconds")
            given.seconds = std::atof(value);
        else
            throw std::invalid_argument("unknown option " + std::string(name));
    }
    if (argc % 2 == 0 || given.batch < 1 || given.tokens < 1 || given.caches < 1 || given.threads < 1)
        throw std::invalid_argument("options are pairs of a name and a value, and counts are at least 1");
    return given;
}

// Elements of memory that starts as zeros, in huge pages where the system gives them on demand, as numpy asks for them.
template <class T>
class memory {
public:
    explicit memory(std::int64_t count) : bytes_(static_cast<std::size_t>(count) * sizeof(T)) {
        void* const got = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED) throw std::bad_alloc();
        madvise(got, bytes_, MADV_HUGEPAGE);
        data_.reset(static_cast<T*>(got));
        data_.get_deleter().bytes = bytes_;
    }
    T* data() const { return data_.get(); }
    std::size_t bytes() const { return bytes_; }

private:
    struct unmap {
        std::size_t bytes = 0;
        void operator()(T* data) const { munmap(data, bytes); }
    };
    std::size_t bytes_;
    std::unique_ptr<T, unmap> data_;
};

inline std::vector<float> read_floats(const std::string& path) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (file == nullptr) throw std::runtime_error("there is no " + path);
    std::fseek(file.get(), 0, SEEK_END);
    std::vector<float> numbers(static_cast<std::size_t>(std::ftell(file.get())) / sizeof(float));
    std::rewind(file.get());
    if (std::fread(numbers.data(), sizeof(float), numbers.size(), file.get()) != numbers.size())
        throw std::runtime_error("cannot read " + path);
    return numbers;
}

// The inputs. `Element` is any 2-byte type that a float converts to, by a function of the program's own.
template <class Element>
class problem {
public:
    template <class Convert>
    problem(const options& given, const Convert& convert) : given_(given) {
        const auto read = [&](const char* name) { return read_floats(given.folder + "/" + name); };
        const auto converted = [&](const char* name) {
            const std::vector<float> numbers = read(name);
            std::vector<Element> elements(numbers.size());
            std::transform(numbers.begin(), numbers.end(), elements.begin(), convert);
            return elements;
        };
        pool_ = converted("pool.f32");
        rows_ = static_cast<std::int64_t>(pool_.size()) / width;
        newest_ = converted("newest.f32");
        queries_ = read("queries.f32");
    }

    const options& given() const { return given_; }
    const std::vector<float>& queries() const { return queries_; } // [batch][query_heads][width]

    // Keys and values of the newest tokens: [batch][kv_heads][width].
    const Element* newest_key() const { return newest_.data(); }
    const Element* newest_value() const { return newest_.data() + newest_.size() / 2; }

    // One token of a request: a key and a value of one head.
    void copy_token(std::int64_t cache, std::int64_t request, std::int64_t token, std::int64_t head, Element* key,
                    Element* value) const {
        const Element* from_key = newest_key() + (request * kv_heads + head) * width;
        const Element* from_value = newest_value() + (request * kv_heads + head) * width;
        if (token < given_.tokens - 1) {
            // The same two formulas are in problem.py.
            const std::int64_t place = ((cache * given_.batch + request) * given_.tokens + token) * kv_heads + head;
            from_key = pool_.data() + ((place * 2654435761) >> 13) % rows_ * width;
            from_value = pool_.data() + ((place * 2246822519) >> 13) % rows_ * width;
        }
        std::memcpy(key, from_key, width * sizeof(Element));
        std::memcpy(value, from_value, width * sizeof(Element));
    }

private:
    options given_;
    std::vector<Element> pool_;
    std::int64_t rows_ = 0;
    std::vector<Element> newest_;
    std::vector<float> queries_;
};

// Decodes once over every cache, and writes all outputs as fp32 to [caches][batch][query_heads][width]; then times
// steps over caches in turn. step(cache) decodes; output() is what it left, as a pointer to floats of one step. Prints
// JSON.
template <class Step, class Output>
void run(const options& given, const std::string& name, const Step& step, const Output& output) {
    using clock = std::chrono::steady_clock;
    const std::string path = given.folder + "/" + given.out;
    {
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
        if (file == nullptr) throw std::runtime_error("cannot write " + path);
        const auto count = static_cast<std::size_t>(given.batch * query_heads * width);
        for (std::int64_t cache = 0; cache < given.caches; ++cache) {
            step(cache);
            if (std::fwrite(output(), sizeof(float), count, file.get()) != count)
                throw std::runtime_error("cannot write " + path);
        }
    }
    std::vector<double> took;
    const auto start = clock::now();
    const std::chrono::duration<double> wanted(given.seconds);
    for (std::int64_t i = 0;; ++i) {
        const auto before = clock::now();
        if (before - start >= (i < 3 ? 10 * wanted : wanted)) break;
        step(i % given.caches);
        took.push_back(std::chrono::duration<double>(clock::now() - before).count());
    }
    std::sort(took.begin(), took.end());
    std::printf("{\"name\": \"%s\", \"seconds\": %.9g, \"fastest\": %.9g, \"steps\": %zu}\n", name.c_str(),
                took[took.size() / 2], took.front(), took.size());
}

} // namespace peers

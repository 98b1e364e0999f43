#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "unique_id.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>

#include <ctxpar/core/error.hpp>

namespace {

namespace fs = std::filesystem;
using demo::exchange_id;
using namespace std::chrono_literals;
using id_bytes = std::array<std::byte, 128>;

// An empty folder that goes with it.
struct folder {
    fs::path path;
    folder() {
        std::string name = (fs::temp_directory_path() / "unique_id_XXXXXX").string();
        path = ::mkdtemp(name.data());
    }
    ~folder() { fs::remove_all(path); }
    std::string file() const { return (path / "id").string(); }
    std::ptrdiff_t entries() const { return std::distance(fs::directory_iterator(path), fs::directory_iterator()); }
};

id_bytes some_id() {
    id_bytes id{};
    for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<std::byte>(i * 37 + 11);
    return id;
}

// The code of the refusal; empty where there is none.
template <class Fn>
std::string refusal(const Fn& fn) {
    try {
        fn();
    } catch (const ctxpar::config_error& error) {
        return error.code();
    }
    return {};
}

void write(const std::string& path, std::size_t bytes, fs::perms mode) {
    std::ofstream(path) << std::string(bytes, 'x');
    fs::permissions(path, mode);
}

constexpr fs::perms own = fs::perms::owner_read | fs::perms::owner_write;

} // namespace

TEST_CASE("every rank gets the bytes of rank 0, whoever comes first, and nothing is left") {
    const folder here;
    for (const int late : {0, 3}) {
        constexpr int size = 5;
        std::vector<id_bytes> got(size);
        got[0] = some_id();
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < size; ++rank)
            ranks.emplace_back([&, rank] {
                if (rank == late) std::this_thread::sleep_for(50ms);
                exchange_id({here.file(), rank, size, 20s}, got[static_cast<std::size_t>(rank)]);
            });
        for (std::thread& each : ranks) each.join();
        CHECK(std::all_of(got.begin(), got.end(), [](const id_bytes& id) { return id == some_id(); }));
        CHECK(here.entries() == 0);
    }
    id_bytes alone = some_id();
    exchange_id({here.file(), 0, 1, 20s}, alone);
    CHECK(here.entries() == 0);
}

TEST_CASE("the file is its owner's alone, and there completely or not at all") {
    const folder here;
    std::thread writer([&] {
        id_bytes id = some_id();
        exchange_id({here.file(), 0, 2, 20s}, id);
    });
    struct stat found {};
    while (::stat(here.file().c_str(), &found) != 0) std::this_thread::yield();
    CHECK(found.st_size == 128);
    CHECK((found.st_mode & 0777) == 0600);
    id_bytes id{};
    exchange_id({here.file(), 1, 2, 20s}, id);
    writer.join();
    CHECK(id == some_id());
}

TEST_CASE("a file that is there already is refused and stays as it was") {
    const folder here;
    write(here.file(), 128, own);
    id_bytes id = some_id();
    CHECK(refusal([&] { exchange_id({here.file(), 0, 2, 20s}, id); }) == "exists");
    CHECK(fs::file_size(here.file()) == 128);
    CHECK(std::ifstream(here.file()).get() == 'x');
    CHECK(here.entries() == 1);
}

TEST_CASE("a file that others may read, of another size or behind a link is not taken") {
    const folder here;
    id_bytes id{};
    write(here.file(), 128, own | fs::perms::group_read);
    CHECK(refusal([&] { exchange_id({here.file(), 1, 2, 20s}, id); }) == "owner");
    fs::remove(here.file());
    write(here.file(), 127, own);
    CHECK(refusal([&] { exchange_id({here.file(), 1, 2, 20s}, id); }) == "size");
    fs::rename(here.file(), here.file() + "2");
    write(here.file() + "2", 128, own);
    fs::create_symlink(here.file() + "2", here.file());
    CHECK(refusal([&] { exchange_id({here.file(), 1, 2, 20s}, id); }) == "file");
    CHECK(id == id_bytes{});
}

TEST_CASE("a rank that does not come ends the wait of the others, and nothing is left") {
    const folder here;
    id_bytes id = some_id();
    std::string sentence;
    try {
        exchange_id({here.file(), 0, 3, 60ms}, id);
    } catch (const ctxpar::config_error& error) {
        sentence = error.what();
    }
    CHECK(sentence.find("rank 1 of 3 had not read") != std::string::npos);
    CHECK(sentence.find(here.file()) != std::string::npos);
    CHECK(refusal([&] { exchange_id({here.file(), 2, 3, 60ms}, id); }) == "timeout");
    CHECK(here.entries() == 0);
    CHECK(refusal([&] { exchange_id({(here.path / "none" / "id").string(), 0, 2, 60ms}, id); }) == "file");
}

TEST_CASE("ranks on one device are refused by name") {
    const std::vector<std::string> apart{"a GPU-1", "a GPU-2", "b GPU-1"};
    CHECK(refusal([&] { demo::require_distinct_devices(apart); }).empty());
    const std::vector<std::string> shared{"a GPU-1", "a GPU-2", "b GPU-1", "a GPU-2"};
    CHECK_THROWS_WITH(demo::require_distinct_devices(shared),
                      doctest::Contains("ranks 1 and 3 both compute on a GPU-2"));
}

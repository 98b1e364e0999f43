#include "unique_id.hpp"

#include <cerrno>
#include <cstdint>
#include <map>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctxpar/core/error.hpp>

namespace demo {
namespace {

using clock = std::chrono::steady_clock;

[[noreturn]] void refuse_file(const char* what, const std::string& path, int reason) {
    ctxpar::raise(ctxpar::config_error("file", std::string("the id file: ") + what + " " + path +
                                                   " failed: " + std::generic_category().message(reason)));
}

class descriptor {
public:
    explicit descriptor(int number) : number_(number) {}
    descriptor(const descriptor&) = delete;
    descriptor& operator=(const descriptor&) = delete;
    ~descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    int number() const { return number_; }

private:
    int number_;
};

std::string mark_of(const id_file& where, int rank) {
    return where.path + ".read_by_" + std::to_string(rank);
}

bool is_there(const std::string& path) {
    struct stat found {};
    return ::lstat(path.c_str(), &found) == 0;
}

[[noreturn]] void refuse_present(const std::string& path) {
    ctxpar::raise(ctxpar::config_error("exists", "the id file " + path +
                                                     " is there already; it is of another run, or was left by one that "
                                                     "failed: take another path, or remove it"));
}

// A file for nobody but its owner, where none is yet. Leaves nothing where it throws.
void create(const std::string& path, std::span<const std::byte> bytes) {
    const descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file.number() < 0 && errno == EEXIST) refuse_present(path);
    if (file.number() < 0) refuse_file("creating", path, errno);
    for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t written = ::write(file.number(), bytes.data() + done, bytes.size() - done);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            const int reason = errno;
            ::unlink(path.c_str());
            refuse_file("writing", path, reason);
        }
        done += static_cast<std::size_t>(written);
    }
}

// Puts the whole file in place at once. A link, unlike a rename, does not replace a file that is there.
void publish(const id_file& where, std::span<const std::byte> id) {
    const std::string draft = where.path + ".draft";
    create(draft, id);
    const int linked = ::link(draft.c_str(), where.path.c_str());
    const int reason = errno;
    ::unlink(draft.c_str());
    if (linked == 0) return;
    if (reason == EEXIST) refuse_present(where.path);
    refuse_file("placing", where.path, reason);
}

template <class Predicate>
bool wait_until(const id_file& where, Predicate holds) {
    const clock::time_point start = clock::now();
    while (!holds()) {
        if (clock::now() - start >= where.timeout) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
}

void give(const id_file& where, std::span<const std::byte> id) {
    publish(where, id);
    int missing = 1;
    const bool all_read = wait_until(where, [&] {
        while (missing < where.size && is_there(mark_of(where, missing))) ++missing;
        return missing >= where.size;
    });
    for (int rank = 1; rank < where.size; ++rank) ::unlink(mark_of(where, rank).c_str());
    ::unlink(where.path.c_str());
    ctxpar::require(all_read, "timeout", "rank ", missing, " of ", where.size, " had not read the id file ", where.path,
                    " after ", where.timeout.count(), " ms; is it the same path in a folder that all ranks see?");
}

void take(const id_file& where, std::span<std::byte> id) {
    ctxpar::require(wait_until(where, [&] { return is_there(where.path); }), "timeout",
                    "rank 0 had not written the id ", "file ", where.path, " when rank ", where.rank, " had waited ",
                    where.timeout.count(), " ms; is it the same path in a folder that all ranks see?");
    const descriptor file(::open(where.path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (file.number() < 0) refuse_file("opening", where.path, errno);
    struct stat found {};
    if (::fstat(file.number(), &found) != 0) refuse_file("looking at", where.path, errno);
    ctxpar::require(S_ISREG(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & 077) == 0, "owner",
                    "the id file ", where.path, " is not a file that only its owner, who runs this rank, may read");
    ctxpar::require(static_cast<std::uint64_t>(found.st_size) == id.size(), "size", "the id file ", where.path, " has ",
                    static_cast<std::int64_t>(found.st_size), " bytes, an id has ", id.size());
    for (std::size_t done = 0; done < id.size();) {
        const ssize_t got = ::read(file.number(), id.data() + done, id.size() - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) refuse_file("reading", where.path, got < 0 ? errno : EIO);
        done += static_cast<std::size_t>(got);
    }
    create(mark_of(where, where.rank), {});
}

} // namespace

void exchange_id(const id_file& where, std::span<std::byte> id) {
    ctxpar::require(where.size >= 1 && where.rank >= 0 && where.rank < where.size, "rank",
                    "the id file is for ranks 0..", where.size - 1, ", and this is rank ", where.rank);
    where.rank == 0 ? give(where, id) : take(where, id);
}

void require_distinct_devices(std::span<const std::string> names) {
    std::map<std::string, std::size_t> seen;
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
        const auto [first, is_new] = seen.emplace(names[rank], rank);
        ctxpar::require(is_new, "devices", "ranks ", first->second, " and ", rank, " both compute on ", names[rank],
                        "; NCCL wants a GPU for each rank");
    }
}

} // namespace demo

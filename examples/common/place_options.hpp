// The options of an example that say where ranks keep their caches and how they communicate.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace demo {

inline void add_place_options(CLI::App& app, std::string& backend, std::string& comm, std::string& id_file) {
    app.add_option("--backend", backend, "where the caches are: cpu, or cuda for GPUs, shared by ranks if need be")
        ->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_option(
           "--comm", comm,
           "how ranks communicate: local, as threads of one process; mpi, as processes that mpirun has started; "
           "or, with a GPU for each of them, nccl, which joins processes where mpirun has started them")
        ->check(CLI::IsMember({"local", "mpi", "nccl"}));
    app.add_option("--id-file", id_file,
                   "with --comm nccl: give NCCL's unique id to all ranks by this file, which all see, not by MPI");
}

} // namespace demo

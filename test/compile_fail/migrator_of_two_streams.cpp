// A backend that works on one kind of stream can not wait for a communicator that works on another, in a migration
// either.
// expect: backend and communicator must have the same stream_type
#include <ctxpar/ctxpar.hpp>

struct other_stream {};

struct other_backend : ctxpar::cpu_backend {
    using cpu_backend::cpu_backend;
#if !defined(CTXPAR_FIXED)
    using stream_type = other_stream;
    void metadata(const ctxpar::metadata_args&, other_stream) {}
    void prefill_metadata(const ctxpar::prefill_metadata_args&, other_stream) {}
    void piece_metadata(const ctxpar::piece_metadata_args&, other_stream) {}
    void reshard_metadata(const ctxpar::reshard_args&, other_stream) {}
#endif
};

static_assert(sizeof(ctxpar::migrator<ctxpar::gqa<ctxpar::bf16, 128>, other_backend, ctxpar::local_communicator>) > 0);

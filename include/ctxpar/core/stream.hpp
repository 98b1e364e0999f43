// The stream of host-side work: empty, because a host operation is done when its call returns.
#pragma once

namespace ctxpar::inline v0_1 {

struct host_stream {};

} // namespace ctxpar::inline v0_1

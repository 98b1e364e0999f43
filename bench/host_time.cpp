// What a step of one of eight ranks costs the host, against the emulated CUDA runtime and NCCL, with no kernel running:
// the library's own time, to which a real runtime adds some microseconds a launch. Exits with 1 where it is more than
// is wished; other work of the machine may be the reason.
#include <cstdio>

#include <simt/host_time.hpp>

int main() {
    const host_time::times took = host_time::measured();
    const auto print = [](const char* what, double microseconds, double most) {
        std::printf("%-44s %7.1f us   at most %.0f us wished\n", what, microseconds, most);
        return microseconds <= most;
    };
    bool all = print("append and decode of a layer, A2A", took.layer, host_time::most_layer_us);
    all &= print("plan of 128 requests of 32768 tokens", took.plan, host_time::most_plan_us);
    all &= print("the same from lengths on the device", took.device_plan, host_time::most_plan_us);
    return all ? 0 : 1;
}

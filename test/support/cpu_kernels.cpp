#include "cpu_kernels.hpp"

CTXPAR_TEST_CPU_KERNELS()

#include "calibrate_gpus_mpi.cu" // for an emulated device

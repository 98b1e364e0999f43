#include "layers_gpus.cu" // for an emulated device

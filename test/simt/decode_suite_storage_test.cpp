// The decode suite of storage types, scales, layouts and tables, over the ranks of an emulated device.
#include "../decode/storage_test.cpp"

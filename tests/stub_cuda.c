// A libcuda that only answers questions, for tests of what is said about GPUs: $STUB_SM and $STUB_DRIVER are its answers.
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceGetName(char *name, int length, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);

static int answer(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }

int cuInit(unsigned flags) {
  (void)flags;
  return answer("STUB_SM") ? 0 : 100;  // CUDA_ERROR_NO_DEVICE
}

int cuDriverGetVersion(int *version) {
  *version = answer("STUB_DRIVER");
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = 1;
  return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  strncpy(name, "Stub", (size_t)length);
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? answer("STUB_SM") / 10 : answer("STUB_SM") % 10;
  return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)8 << 30;
  return 0;
}

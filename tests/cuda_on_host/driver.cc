// A minimal libcuda.so.1, so that cuDNN compiles algorithms without a driver. It has no device; the functions that the
// library looks up by name exist and fail.
namespace {

constexpr int kSuccess = 0, kNotFound = 500, kVersion = 13000;

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) { return *version = kVersion, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = 0, kSuccess; }

#define FAILS(name) \
  int name() { return kNotFound; }
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetDevice)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPopCurrent_v2)
FAILS(cuCtxPushCurrent)
FAILS(cuCtxPushCurrent_v2)
FAILS(cuCtxSynchronize)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetAttribute)
FAILS(cuFuncGetAttribute)
FAILS(cuFuncSetAttribute)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuGetExportTable)
FAILS(cuGetProcAddress_v2)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelGetFunction)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryGetKernel)
FAILS(cuLibraryLoadData)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLibraryUnload)
FAILS(cuLinkAddData)
FAILS(cuLinkAddData_v2)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkCreate_v2)
FAILS(cuLinkDestroy)
FAILS(cuMemAlloc_v2)
FAILS(cuMemFree_v2)
FAILS(cuMemcpyDtoH_v2)
FAILS(cuMemcpyHtoD_v2)
FAILS(cuMemsetD32Async)
FAILS(cuModuleGetFunction)
FAILS(cuModuleLoadData)
FAILS(cuModuleUnload)
FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAILS(cuOccupancyMaxActiveClusters)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
FAILS(cuStreamSynchronize)
FAILS(cuTensorMapEncodeIm2col)
FAILS(cuTensorMapEncodeTiled)

}  // extern "C"

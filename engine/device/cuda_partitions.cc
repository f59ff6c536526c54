// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_partitions.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"

#if CUDART_VERSION < 12050
#error "green contexts need CUDA toolkit 12.5 or later"
#endif

namespace intrawarp {
namespace {

// The driver that had the last of the entry points, cuGreenCtxStreamCreate, first.
constexpr unsigned kDriverVersion = 12050;

template <typename Function>
absl::Status Find(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    (void)cudaGetLastError();
    return absl::UnimplementedError(absl::StrCat("the CUDA driver has no ", name));
  }
  *function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

// The runtime's errors have the numbers of the driver's.
absl::Status DriverStatus(CUresult result, const char* call) {
  return CudaStatus(static_cast<cudaError_t>(result), call);
}

int DefaultFramesMultiprocessors(int all) { return all * 8 / 11; }

}  // namespace

struct CudaPartitions::Driver {
  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDeviceGetDevResource) device_resource = nullptr;
  decltype(&::cuDevSmResourceSplitByCount) split = nullptr;
  decltype(&::cuDevResourceGenerateDesc) describe = nullptr;
  decltype(&::cuGreenCtxCreate) create = nullptr;
  decltype(&::cuGreenCtxDestroy) destroy = nullptr;
  decltype(&::cuGreenCtxStreamCreate) create_stream = nullptr;
  decltype(&::cuStreamGetGreenCtx) context_of = nullptr;

  absl::Status FindAll() {
    INTRAWARP_RETURN_IF_ERROR(Find("cuDeviceGet", &device_get));
    INTRAWARP_RETURN_IF_ERROR(Find("cuDeviceGetDevResource", &device_resource));
    INTRAWARP_RETURN_IF_ERROR(Find("cuDevSmResourceSplitByCount", &split));
    INTRAWARP_RETURN_IF_ERROR(Find("cuDevResourceGenerateDesc", &describe));
    INTRAWARP_RETURN_IF_ERROR(Find("cuGreenCtxCreate", &create));
    INTRAWARP_RETURN_IF_ERROR(Find("cuGreenCtxDestroy", &destroy));
    INTRAWARP_RETURN_IF_ERROR(Find("cuGreenCtxStreamCreate", &create_stream));
    return Find("cuStreamGetGreenCtx", &context_of);
  }
};

CudaPartitions::CudaPartitions(std::unique_ptr<const Driver> driver) : driver_(std::move(driver)) {}

CudaPartitions::~CudaPartitions() {
  for (const Side& side : {frames_, batch_}) {
    if (side.context != nullptr) (void)driver_->destroy(side.context);
  }
}

absl::StatusOr<std::unique_ptr<CudaPartitions>> CudaPartitions::Create(int ordinal, int frames_multiprocessors) {
  auto driver = std::make_unique<Driver>();
  INTRAWARP_RETURN_IF_ERROR(driver->FindAll());
  std::unique_ptr<CudaPartitions> partitions(new CudaPartitions(std::move(driver)));
  INTRAWARP_RETURN_IF_ERROR(partitions->Split(ordinal, frames_multiprocessors));
  return partitions;
}

absl::Status CudaPartitions::Split(int ordinal, int frames_multiprocessors) {
  CUdevice device = 0;
  CUdevResource all = {}, frames = {}, batch = {};
  INTRAWARP_RETURN_IF_ERROR(DriverStatus(driver_->device_get(&device, ordinal), "cuDeviceGet"));
  INTRAWARP_RETURN_IF_ERROR(
      DriverStatus(driver_->device_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource"));
  const int count = static_cast<int>(all.sm.smCount);
  const int wanted = frames_multiprocessors > 0 ? frames_multiprocessors : DefaultFramesMultiprocessors(count);
  if (wanted < kLeastMultiprocessors || wanted > count - kLeastMultiprocessors) {
    return absl::FailedPreconditionError(absl::StrCat(wanted, " of ", count, " multiprocessors are not a partition"));
  }
  unsigned groups = 1;
  INTRAWARP_RETURN_IF_ERROR(DriverStatus(
      driver_->split(&frames, &groups, &all, &batch, 0, static_cast<unsigned>(wanted)), "cuDevSmResourceSplitByCount"));
  if (groups != 1 || batch.type != CU_DEV_RESOURCE_TYPE_SM || batch.sm.smCount < kLeastMultiprocessors) {
    return absl::FailedPreconditionError(absl::StrCat(wanted, " of ", count, " multiprocessors leave too few"));
  }
  INTRAWARP_RETURN_IF_ERROR(Open(device, frames, &frames_));
  return Open(device, batch, &batch_);
}

absl::Status CudaPartitions::Open(CUdevice device, CUdevResource resource, Side* side) {
  CUdevResourceDesc description = nullptr;
  INTRAWARP_RETURN_IF_ERROR(DriverStatus(driver_->describe(&description, &resource, 1), "cuDevResourceGenerateDesc"));
  INTRAWARP_RETURN_IF_ERROR(DriverStatus(
      driver_->create(&side->context, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate"));
  side->multiprocessors = static_cast<int>(resource.sm.smCount);
  return absl::OkStatus();
}

absl::StatusOr<cudaStream_t> CudaPartitions::CreateStream(Partition partition, int priority) const {
  cudaStream_t stream = nullptr;
  INTRAWARP_RETURN_IF_ERROR(
      DriverStatus(driver_->create_stream(&stream, Of(partition).context, CU_STREAM_NON_BLOCKING, priority),
                   "cuGreenCtxStreamCreate"));
  return stream;
}

absl::StatusOr<Partition> CudaPartitions::PartitionOf(cudaStream_t stream) const {
  CUgreenCtx context = nullptr;
  INTRAWARP_RETURN_IF_ERROR(DriverStatus(driver_->context_of(stream, &context), "cuStreamGetGreenCtx"));
  if (context == nullptr) return Partition::kWhole;
  return context == frames_.context ? Partition::kFrames : Partition::kBatch;
}

}  // namespace intrawarp

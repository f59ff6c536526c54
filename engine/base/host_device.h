// SPDX-License-Identifier: Apache-2.0
// INTRAWARP_HD marks an inline function that both the host and a CUDA kernel call.
#ifndef INTRAWARP_ENGINE_BASE_HOST_DEVICE_H_
#define INTRAWARP_ENGINE_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define INTRAWARP_HD __host__ __device__
#else
#define INTRAWARP_HD
#endif

#endif  // INTRAWARP_ENGINE_BASE_HOST_DEVICE_H_

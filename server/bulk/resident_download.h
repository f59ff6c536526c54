// SPDX-License-Identifier: Apache-2.0
// ResidentDownload: a resident object as a download sends it.
#ifndef INTRAWARP_SERVER_BULK_RESIDENT_DOWNLOAD_H_
#define INTRAWARP_SERVER_BULK_RESIDENT_DOWNLOAD_H_

#include <chrono>
#include <string>

#include "intrawarp/v1/bulk.pb.h"
#include "server/bulk/slab_source.h"

namespace intrawarp::server {

// All of `header` but the etag is filled.
struct ResidentDownload {
  v1::DownloadHeader header;
  ResidentBytes bytes;
  int device = 0;  // on which they lie
  std::chrono::system_clock::time_point create_time;
  // The digest of the upload; empty for what was computed here.
  std::string digest;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_RESIDENT_DOWNLOAD_H_

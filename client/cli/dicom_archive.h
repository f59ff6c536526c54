// SPDX-License-Identifier: Apache-2.0
// DICOM files on their way to an archive, by STOW-RS or by C-STORE, and from one, by WADO-RS. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_DICOM_ARCHIVE_H_
#define INTRAWARP_CLIENT_CLI_DICOM_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicom/file_meta.h"
#include "io/dicomweb/archive.h"
#include "io/dicomweb/http.h"

namespace intrawarp::cli {

struct DicomFile {
  std::string path;
  io::FileMeta meta;
};

struct DicomFiles {
  std::vector<DicomFile> files;
  // Files that are not DICOM, or DICOMDIRs: they are not sent.
  int64_t others = 0;
};

// The DICOM files (PS3.10) that a path stands for: a file, or those below a folder. NOT_FOUND where there are none;
// DATA_LOSS for a DICOM file with a broken header.
absl::StatusOr<DicomFiles> FindDicomFiles(const std::string& path);

// Where C-STORE goes to.
struct StorePeer {
  std::string called_ae;
  std::string calling_ae;
  std::string host;  // a numeric address without brackets
  int port = 0;
  // Paths; without authorities the association is plain text.
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
};

// "AE_TITLE@HOST:PORT". INVALID_ARGUMENT otherwise.
absl::StatusOr<StorePeer> ParseStorePeer(const std::string& text);
bool IsLoopback(const std::string& host);

// Both add to `stored`; StoreStatus says what that means. An error is one of the exchange as a whole.
absl::Status SendByStow(const dicomweb::HttpOptions& http, const std::vector<DicomFile>& files,
                        dicomweb::StoredInstances& stored);
// Each file goes in the transfer syntax that it has; one whose SOP class or transfer syntax the peer does not take
// counts as failed for reason 0x0122.
absl::Status SendByStore(const StorePeer& peer, const std::vector<DicomFile>& files, dicomweb::StoredInstances& stored);

// A series as files in a folder, which must be new or empty and appears once all of them are there. The number of
// files.
absl::StatusOr<int64_t> FetchSeries(const dicomweb::HttpOptions& http, const std::string& study,
                                    const std::string& series, const std::string& folder);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_DICOM_ARCHIVE_H_

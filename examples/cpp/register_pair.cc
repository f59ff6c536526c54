// SPDX-License-Identifier: Apache-2.0
// Registers two NIfTI files and says whether the result may be used: the twin of python/register_pair.py.
//   register_pair HOST:PORT FIXED.nii.gz MOVING.nii.gz
#include <cstdio>

#include "client/cpp/client.h"
#include "engine/base/status_macros.h"
#include "io/format/nifti.h"
#include "io/format/volume.h"

using intrawarp::client::Client;

// Uploads a file, and gives the name of the volume.
absl::StatusOr<std::string> Put(Client& client, const char* path) {
  INTRAWARP_ASSIGN_OR_RETURN(const intrawarp::io::HostVolume volume, intrawarp::io::ReadNifti(path));
  intrawarp::client::VolumeUpload upload;
  upload.geometry = volume.geometry;
  upload.pixel_type = volume.pixel_type;
  upload.bytes = {reinterpret_cast<const char*>(volume.pixels.data()), volume.pixels.size()};
  upload.rescale_slope = volume.rescale_slope;
  upload.rescale_intercept = volume.rescale_intercept;
  INTRAWARP_ASSIGN_OR_RETURN(const intrawarp::v1::UploadResponse answer, client.UploadVolume(upload));
  return answer.volume().name();
}

absl::Status Run(char** argv) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Connect(argv[1]));
  intrawarp::v1::RegisterRequest request;
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_fixed(), Put(*client, argv[2]));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), Put(*client, argv[3]));
  INTRAWARP_ASSIGN_OR_RETURN(const auto result, client->Register(request, nullptr, nullptr));
  const bool is_ok = result.report().verdict() == intrawarp::v1::VERDICT_OK;
  std::printf("%s\nexpected error %.2f mm\n", is_ok ? "OK" : "REVIEW", result.report().error().expected_mm());
  for (const auto& reason : result.report().reasons()) std::printf("  %s\n", reason.message().c_str());
  return is_ok ? absl::OkStatus() : absl::FailedPreconditionError("a person should look at the result first");
}

int main(int, char** argv) {
  const absl::Status status = Run(argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

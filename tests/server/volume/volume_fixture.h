// SPDX-License-Identifier: Apache-2.0
// A server and its volumes; nothing is left after a test.
#ifndef INTRAWARP_TESTS_SERVER_VOLUME_VOLUME_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_VOLUME_VOLUME_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/service/volume_service.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {

class VolumeServiceTest : public ::testing::Test {
 protected:
  VolumeServiceTest() : stub_(test_.Stub<v1::VolumeService>()), bulk_(test_.Stub<v1::BulkService>()) {}
  // Whatever a test did, what it did not store is gone, at the latest when unfinished uploads have expired.
  ~VolumeServiceTest() override {
    for (const std::string& name : Names()) Delete(name);
    test_.ExpectNothingLeft();
  }

  std::vector<std::string> Names() {
    grpc::ClientContext call;
    v1::ListVolumesRequest request;
    request.set_page_size(1000);
    v1::ListVolumesResponse response;
    EXPECT_TRUE(stub_->ListVolumes(&call, request, &response).ok());
    std::vector<std::string> names;
    for (const v1::Volume& volume : response.volumes()) names.push_back(volume.name());
    return names;
  }
  grpc::Status Delete(const std::string& name) {
    grpc::ClientContext call;
    v1::DeleteVolumeRequest request;
    request.set_name(name);
    v1::DeleteVolumeResponse response;
    return stub_->DeleteVolume(&call, request, &response);
  }
  grpc::Status Get(const std::string& name, v1::Volume* volume) {
    grpc::ClientContext call;
    v1::GetVolumeRequest request;
    request.set_name(name);
    v1::GetVolumeResponse response;
    const grpc::Status status = stub_->GetVolume(&call, request, &response);
    *volume = response.volume();
    return status;
  }
  grpc::Status UploadStatus(const std::string& upload_id, v1::GetUploadStatusResponse* response) {
    grpc::ClientContext call;
    v1::GetUploadStatusRequest request;
    request.set_upload_id(upload_id);
    return bulk_->GetUploadStatus(&call, request, response);
  }
  // Waits until so much of the upload is there.
  void WaitForCommitted(const std::string& upload_id, int64_t committed) {
    v1::GetUploadStatusResponse status;
    EXPECT_TRUE(Eventually([&] {
      return UploadStatus(upload_id, &status).ok() && status.committed_bytes() == committed;
    })) << status.committed_bytes()
        << " instead of " << committed;
  }
  void WaitForNoStreams() {
    EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0; }).streams(), 0);
  }

  TestServer test_;
  std::unique_ptr<v1::VolumeService::Stub> stub_;
  std::unique_ptr<v1::BulkService::Stub> bulk_;
};

inline UploadData WithProvenance(const std::string& upload_id, const std::string& id, const v1::Provenance& from) {
  UploadData data = MakeVolume(BoxGeometry(5, 4, 3), RandomVoxels<int16_t>(BoxGeometry(5, 4, 3), 3), upload_id, id);
  *data.header.mutable_volume()->mutable_provenance() = from;
  return data;
}

inline v1::Provenance DicomProvenance() {
  v1::Provenance from;
  from.set_source(v1::PROVENANCE_SOURCE_DICOM);
  from.set_modality("MR");
  from.set_series_hash(std::string("\0\xff series hash of thirty-two bytes", 32));
  from.set_frame_of_reference_hash(std::string(32, 'f'));
  return from;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_VOLUME_VOLUME_FIXTURE_H_

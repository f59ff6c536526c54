// SPDX-License-Identifier: Apache-2.0
// A server with a DICOM port as a process, the programs of DCMTK as its peers, and a peer of our own that can
// misbehave.
#ifndef INTRAWARP_TESTS_SERVER_PACS_PACS_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_PACS_PACS_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "server/dimse/association.h"
#include "tests/client/process.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"
#include "tests/server/http_client.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace intrawarp::server {

inline constexpr char kCtStorage[] = "1.2.840.10008.5.1.4.1.1.2";
inline constexpr char kVerificationClass[] = "1.2.840.10008.1.1";
inline constexpr char kExplicitLittle[] = "1.2.840.10008.1.2.1";

class PacsTest : public io::FileTest {
 protected:
  PacsTest() : maker_(MakeFolder("in")) {}
  ~PacsTest() override {
    if (server_ != nullptr) StopServer();
  }

  std::string MakeFolder(const std::string& name) const {
    std::filesystem::create_directories(folder_ / name);
    return Path(name);
  }

  void StartServer(
      std::vector<std::string> flags = {},
      const std::string& peers = "SCU 127.0.0.1 - associations=32\nOTHER 127.0.0.1 -\nAWAY 192.0.2.1 -\n") {
    Put("peers", peers);
    std::vector<std::string> all = {"--dicom_listen=127.0.0.1:0", "--dicom_quiet=300ms",
                                    absl::StrCat("--dicom_peers=", Path("peers")),
                                    absl::StrCat("--dicom_spool=", MakeFolder("spool"))};
    all.insert(all.end(), flags.begin(), flags.end());
    server_ = std::make_unique<client::ServerProcess>(INTRAWARPD, all);
    grpc_ = server_->grpc();
    http_ = server_->http();
    const std::string dicom = client::Word(server_->ready(), "dicom=");
    ASSERT_NE(dicom, "") << server_->ready();
    port_ = dicom.substr(dicom.rfind(':') + 1);
  }
  // Everything that it has logged.
  std::string StopServer() {
    const client::ProcessResult result = server_->Stop();
    server_.reset();
    return result.err;
  }

  // `count` slices of a series in a folder of its own. `announced`: the images that each says there are; 0: none.
  std::string Series(const std::string& name, const std::string& uid, int count, int side = 12, int announced = 0) {
    io::DicomMaker maker(MakeFolder(name));
    io::SliceSpec spec;
    spec.series = uid;
    spec.columns = spec.rows = side;
    for (int k = 0; k < count; ++k) {
      spec.z = 2 * k;
      const auto file = maker.Slice(spec);
      file->getDataset()->putAndInsertString(DCM_SOPInstanceUID, absl::StrCat(uid, ".", k + 1).c_str());
      if (announced > 0) {
        file->getDataset()->putAndInsertString(DCM_ImagesInAcquisition, absl::StrCat(announced).c_str());
      }
      maker.Save(*file, absl::StrCat("slice", k));
    }
    return Path(name);
  }

  std::vector<std::string> StoreArguments(const std::string& folder, const std::string& ae = "SCU",
                                          const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"/usr/bin/storescu", "-aet", ae,    "-aec", "INTRAWARP", "+sd",
                                    "127.0.0.1",         port_,  folder};
    all.insert(all.begin() + 1, more.begin(), more.end());
    return all;
  }
  client::ProcessResult Store(const std::string& folder, const std::string& ae = "SCU",
                              const std::vector<std::string>& more = {}) const {
    return client::RunProcess(StoreArguments(folder, ae, more));
  }
  bool Echo(const std::string& ae = "SCU", const std::string& called = "INTRAWARP") const {
    return client::RunProcess({"/usr/bin/echoscu", "-aet", ae, "-aec", called, "127.0.0.1", port_}).exit_status == 0;
  }

  std::vector<v1::Volume> Volumes() const {
    auto stub = v1::VolumeService::NewStub(grpc::CreateChannel(grpc_, grpc::InsecureChannelCredentials()));
    grpc::ClientContext call;
    v1::ListVolumesResponse response;
    const grpc::Status status = stub->ListVolumes(&call, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.volumes().begin(), response.volumes().end()};
  }
  std::string Metrics() const { return HttpGet(http_, "/metrics").body; }
  // The value of a series; -1 when there is none.
  double Metric(const std::string& series) const {
    const std::string text = absl::StrCat("\n", Metrics());
    const size_t at = text.find(absl::StrCat("\n", series, " "));
    return at == std::string::npos ? -1 : std::atof(text.c_str() + at + series.size() + 2);
  }
  bool HasVolumes(size_t count) const {
    return Eventually([&] { return Volumes().size() >= count; });
  }
  bool SpoolIsEmpty() const {
    return Eventually([&] { return Metric("intrawarp_dicom_spool_instances") == 0; }) &&
           Metric("intrawarp_dicom_spool_used_bytes") == 0;
  }

  // A peer of ours.
  std::shared_ptr<dimse::Connection> Connect() const {
    auto connection = dimse::Connection::Connect("127.0.0.1", std::atoi(port_.c_str()), Soon());
    EXPECT_TRUE(connection.ok()) << connection.status();
    return *connection;
  }
  static std::chrono::steady_clock::time_point Soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(60);
  }
  static dimse::AssociateRequest RequestFor(const std::string& service, const std::string& syntax = kExplicitLittle) {
    return {"INTRAWARP", "SCU", {{1, service, {syntax}}}, {}, 16384};
  }
  static dimse::Command StoreCommand(const std::string& instance) {
    dimse::Command command;
    command.field = dimse::kStoreRequest;
    command.message_id = 1;
    command.has_data = true;
    command.elements.SetUid(dimse::kAffectedSopClass, kCtStorage);
    command.elements.SetUid(dimse::kAffectedSopInstance, instance);
    command.elements.Set16(dimse::kPriority, 0);
    return command;
  }
  // The data set of a file, without what stands before it.
  static std::string DataSetOf(const std::string& path) {
    DcmFileFormat file;
    EXPECT_TRUE(file.loadFile(path.c_str()).good());
    EXPECT_TRUE(file.getDataset()->saveFile((path + ".data").c_str(), EXS_LittleEndianExplicit).good());
    const std::string bytes = Get(path + ".data");
    std::filesystem::remove(path + ".data");
    return bytes;
  }

  io::DicomMaker maker_;
  std::unique_ptr<client::ServerProcess> server_;
  std::string grpc_, http_, port_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_PACS_PACS_FIXTURE_H_

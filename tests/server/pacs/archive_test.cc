// SPDX-License-Identifier: Apache-2.0
// Archives that send to the server: dcmqrscp and Orthanc, told to do so by C-MOVE.
#include <unistd.h>

#include "tests/server/pacs/pacs_fixture.h"
#include "tests/support/free_port.h"

namespace intrawarp::server {
namespace {

using client::Process;
using client::ProcessResult;

class ArchiveTest : public PacsTest {
 protected:
  // A series with the keys that archives want, in the archive and not in the server.
  void Fill(const std::string& ae) {
    const std::string folder = Series("ct", "1.2.5.1", 7);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      DcmFileFormat file;
      ASSERT_TRUE(file.loadFile(entry.path().c_str()).good());
      file.getDataset()->putAndInsertString(DCM_PatientID, "1");
      file.getDataset()->putAndInsertString(DCM_PatientName, "Nobody");
      file.getDataset()->putAndInsertString(DCM_StudyInstanceUID, "1.2.5");
      ASSERT_TRUE(file.saveFile(entry.path().c_str()).good());
    }
    ASSERT_TRUE(Eventually([&] {
      return client::RunProcess(
                 {"/usr/bin/echoscu", "-aet", "MOVER", "-aec", ae, "127.0.0.1", std::to_string(archive_port_)})
                 .exit_status == 0;
    }));
    const ProcessResult stored = client::RunProcess(
        {"/usr/bin/storescu", "-aet", "MOVER", "-aec", ae, "+sd", "127.0.0.1", std::to_string(archive_port_), folder});
    ASSERT_EQ(stored.exit_status, 0) << stored.err;
  }
  ProcessResult Move(const std::string& ae) const {
    return client::RunProcess({"/usr/bin/movescu", "-S", "-aet", "MOVER", "-aec", ae, "-aem", "INTRAWARP", "-k",
                               "0008,0052=SERIES", "-k", "0020,000d=1.2.5", "-k", "0020,000e=1.2.5.1", "127.0.0.1",
                               std::to_string(archive_port_)});
  }
  void ExpectTheVolume() {
    ASSERT_TRUE(HasVolumes(1)) << StopServer();
    EXPECT_THAT(Volumes()[0].geometry().size(), testing::ElementsAre(12, 12, 7));
    EXPECT_TRUE(SpoolIsEmpty());
  }

  const int archive_port_ = FreePort();
};

TEST_F(ArchiveTest, DcmqrscpMovesASeries) {
  StartServer({}, "ARCHIVE 127.0.0.1 -\n");
  Put("dcmqrscp.cfg",
      absl::StrCat("NetworkTCPPort = ", archive_port_, "\nMaxPDUSize = 16384\nMaxAssociations = 8\nHostTable BEGIN\n",
                   "iw = (INTRAWARP, 127.0.0.1, ", port_, ")\nmover = (MOVER, 127.0.0.1, 104)\nHostTable END\n",
                   "VendorTable BEGIN\nVendorTable END\nAETable BEGIN\nARCHIVE ", MakeFolder("archive"),
                   " RW (10, 1024mb) ANY\nAETable END\n"));
  Process archive({"/usr/bin/dcmqrscp", "-c", Path("dcmqrscp.cfg")});
  Fill("ARCHIVE");
  const ProcessResult moved = Move("ARCHIVE");
  EXPECT_EQ(moved.exit_status, 0) << moved.err;
  ExpectTheVolume();
}

TEST_F(ArchiveTest, OrthancMovesASeries) {
  if (access("/usr/sbin/Orthanc", X_OK) != 0) GTEST_SKIP() << "Orthanc is not installed";
  StartServer({}, "ORTHANC 127.0.0.1 -\n");
  Put("orthanc.json",
      absl::StrCat(
          "{\"Name\": \"test\", \"DicomAet\": \"ORTHANC\", \"DicomPort\": ", archive_port_,
          ", \"HttpServerEnabled\": false, \"StorageDirectory\": \"", MakeFolder("archive"),
          "\", \"DicomCheckCalledAet\": false, \"DicomAlwaysAllowStore\": true, \"DicomAlwaysAllowEcho\": true, ",
          "\"Plugins\": [], \"DicomModalities\": {\"iw\": [\"INTRAWARP\", \"127.0.0.1\", ", port_,
          "], \"mover\": [\"MOVER\", \"127.0.0.1\", 104]}}"));
  Process archive({"/usr/sbin/Orthanc", Path("orthanc.json")});
  Fill("ORTHANC");
  const ProcessResult moved = Move("ORTHANC");
  EXPECT_EQ(moved.exit_status, 0) << moved.err;
  ExpectTheVolume();
  archive.Signal(SIGTERM);
  archive.Wait();
}

}  // namespace
}  // namespace intrawarp::server

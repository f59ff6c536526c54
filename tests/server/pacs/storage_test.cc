// SPDX-License-Identifier: Apache-2.0
// Images sent to a server by C-STORE: they become volumes, whatever else happens at the port.
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "io/dicom/dicom.h"
#include "tests/server/identity/certificates.h"
#include "tests/server/pacs/pacs_fixture.h"

namespace intrawarp::server {
namespace {

using client::Process;
using client::ProcessResult;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kStored[] = "intrawarp_dicom_instances_total{outcome=\"stored\"}";
constexpr char kNoRoom[] = "intrawarp_dicom_instances_total{outcome=\"no_room\"}";
constexpr char kUnreadable[] = "intrawarp_dicom_instances_total{outcome=\"unreadable\"}";
constexpr char kTimeouts[] = "intrawarp_dicom_associations_total{outcome=\"timeout\"}";
constexpr char kProtocol[] = "intrawarp_dicom_associations_total{outcome=\"protocol\"}";
constexpr char kBroken[] = "intrawarp_dicom_associations_total{outcome=\"broken\"}";
constexpr char kContradicting[] = "intrawarp_dicom_instances_total{outcome=\"refused\"}";
constexpr char kRefusedVolumes[] = "intrawarp_dicom_volumes_total{outcome=\"refused\"}";

class StorageTest : public PacsTest {
 protected:
  static void Change(const std::string& path, const DcmTagKey& tag, const std::string& value) {
    DcmFileFormat file;
    ASSERT_TRUE(file.loadFile(path.c_str()).good());
    file.getDataset()->putAndInsertString(tag, value.c_str());
    ASSERT_TRUE(file.saveFile(path.c_str(), EXS_LittleEndianExplicit).good());
  }
  // The number of slices of each volume.
  std::map<std::string, int64_t> SizesByName() const {
    std::map<std::string, int64_t> sizes;
    for (const v1::Volume& volume : Volumes()) sizes[volume.name()] = volume.geometry().size(2);
    return sizes;
  }
  std::multiset<int64_t> SizesOfAll() const {
    std::multiset<int64_t> sizes;
    for (const auto& [name, size] : SizesByName()) sizes.insert(size);
    return sizes;
  }
  // The status of the answer.
  uint16_t StoreOne(const std::string& instance, const std::string& data) const {
    auto association = dimse::Association::Request(Connect(), {}, RequestFor(kCtStorage));
    EXPECT_TRUE(association.ok()) << association.status();
    EXPECT_TRUE((*association)->Send(1, StoreCommand(instance), data).ok());
    const auto response = (*association)->ReceiveCommand();
    EXPECT_TRUE(response.ok()) << response.status();
    (*association)->Release();
    return response.ok() ? response->command.status() : uint16_t{dimse::kCancelled};
  }
  // Stores the slices of `Series`; `other`: with another last pixel.
  std::vector<uint16_t> StoreAll(const std::string& folder, const std::string& series, int count,
                                 bool other = false) const {
    auto association = dimse::Association::Request(Connect(), {}, RequestFor(kCtStorage));
    EXPECT_TRUE(association.ok()) << association.status();
    std::vector<uint16_t> statuses;
    for (int k = 0; k < count; ++k) {
      std::string data = DataSetOf(absl::StrCat(folder, "/slice", k));
      if (other) data.back() = static_cast<char>(data.back() + 1);
      EXPECT_TRUE((*association)->Send(1, StoreCommand(absl::StrCat(series, ".", k + 1)), data).ok());
      const auto response = (*association)->ReceiveCommand();
      EXPECT_TRUE(response.ok()) << response.status();
      statuses.push_back(response->command.status());
    }
    (*association)->Release();
    return statuses;
  }
};

TEST_F(StorageTest, AnAssociationBecomesAVolume) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.1", 5);
  const ProcessResult stored = Store(folder);
  EXPECT_EQ(stored.exit_status, 0) << stored.err;
  ASSERT_TRUE(HasVolumes(1));
  const v1::Volume volume = Volumes()[0];
  const auto listing = io::ListDicom(folder);
  ASSERT_THAT(listing, io::Succeeds());
  const std::string hash = listing->volumes[0].provenance.series.substr(0, 16);
  EXPECT_EQ(volume.name(), "volumes/dicom-ct-" + hash);
  EXPECT_THAT(volume.geometry().size(), testing::ElementsAre(12, 12, 5));
  const auto read = io::ReadDicom(folder);
  ASSERT_THAT(read, io::Succeeds());
  const std::vector<float> values = io::ToFloat(read->volume);
  EXPECT_EQ(volume.minimum(), *std::min_element(values.begin(), values.end()));
  EXPECT_EQ(volume.maximum(), *std::max_element(values.begin(), values.end()));
  // Nobody has said how many images there are.
  EXPECT_TRUE(volume.provisional());
  EXPECT_TRUE(SpoolIsEmpty());
  EXPECT_EQ(Metric("intrawarp_dicom_spool_made_instances"), 5);
  EXPECT_EQ(Metric(kStored), 5);

  // Sent again it is the same volume.
  EXPECT_EQ(Store(folder).exit_status, 0);
  EXPECT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_volumes_total{outcome=\"resident\"}") == 2; }));
  EXPECT_EQ(Volumes().size(), 1);
  // More images make another volume of all, and the first one stays.
  Series("ct", "1.2.3.1", 7);
  EXPECT_EQ(Store(folder).exit_status, 0);
  ASSERT_TRUE(HasVolumes(2));
  EXPECT_THAT(SizesByName(),
              testing::ElementsAre(testing::Pair(volume.name(), 5), testing::Pair(volume.name() + "-v2", 7)));
  // Other images under their UIDs are refused, and change nothing.
  EXPECT_THAT(StoreAll(folder, "1.2.3.1", 7, /*other=*/true), testing::Each(dimse::kDataSetDoesNotMatch));
  EXPECT_EQ(Metric(kContradicting), 7);
  EXPECT_EQ(Volumes().size(), 2);
  EXPECT_THAT(StopServer(), HasSubstr("contradicting=7"));
}

// A scanner that pauses longer than the quiet time, with an association for each image.
TEST_F(StorageTest, APauseMakesNoHalfVolumeTheLastWord) {
  const std::vector<std::string> flags = {absl::StrCat("--state_dir=", MakeFolder("state"))};
  StartServer(flags);
  const std::string folder = Series("ct", "1.2.3.40", 10);
  const auto store = [&](int begin, int end) {
    for (int k = begin; k < end; ++k) {
      EXPECT_EQ(client::RunProcess({"/usr/bin/storescu", "-aet", "SCU", "-aec", "INTRAWARP", "127.0.0.1", port_,
                                    absl::StrCat(folder, "/slice", k)})
                    .exit_status,
                0);
    }
  };
  store(0, 6);
  ASSERT_TRUE(Eventually([&] { return SizesOfAll().contains(6); }));
  store(6, 8);
  // The late images outlive a restart with those that have a volume.
  StopServer();
  StartServer(flags);
  store(8, 10);
  ASSERT_TRUE(Eventually([&] { return SizesOfAll().contains(10); })) << StopServer();
  // However slowly the images came: each volume begins with the first one, and none has only late ones.
  const std::vector<v1::Volume> volumes = Volumes();
  const double first = volumes[0].geometry().origin(2);
  for (const v1::Volume& volume : volumes) {
    EXPECT_TRUE(volume.provisional()) << volume.name();
    EXPECT_EQ(volume.geometry().origin(2), first) << volume.name();
  }
}

// Images that say how many they are: no volume before all are there, and no wait once they are.
TEST_F(StorageTest, ASeriesIsCompleteByWhatItsImagesSay) {
  StartServer({"--dicom_quiet=1h"});
  const std::string folder = Series("ct", "1.2.3.41", 6, 12, /*announced=*/6);
  const std::string rest = MakeFolder("rest");
  for (int k = 4; k < 6; ++k) {
    std::filesystem::rename(absl::StrCat(folder, "/slice", k), absl::StrCat(rest, "/slice", k));
  }
  EXPECT_EQ(Store(folder).exit_status, 0);
  EXPECT_EQ(Metric("intrawarp_dicom_spool_instances"), 4);
  EXPECT_TRUE(Volumes().empty());
  EXPECT_EQ(Store(rest).exit_status, 0);
  ASSERT_TRUE(HasVolumes(1));
  EXPECT_EQ(Volumes()[0].geometry().size(2), 6);
  EXPECT_FALSE(Volumes()[0].provisional());
}

// A slice that is missing in the middle, and arrives when the rules have refused the rest.
TEST_F(StorageTest, ALateSliceFillsItsGap) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.42", 6);
  const std::string rest = MakeFolder("rest");
  std::filesystem::rename(folder + "/slice2", rest + "/slice2");
  EXPECT_EQ(Store(folder).exit_status, 0);
  EXPECT_TRUE(Eventually([&] { return Metric(kRefusedVolumes) == 1; }));
  EXPECT_EQ(Store(rest).exit_status, 0);
  ASSERT_TRUE(HasVolumes(1));
  EXPECT_THAT(SizesOfAll(), testing::ElementsAre(6));
}

TEST_F(StorageTest, NoVolumeIsOfTwoPatients) {
  StartServer();
  // One series, frame of reference and association; the first five slices of one patient, the others of another.
  const std::string folder = Series("ct", "1.2.3.43", 10);
  for (int k = 0; k < 10; ++k) Change(absl::StrCat(folder, "/slice", k), DCM_PatientID, k < 5 ? "P1" : "P2");
  EXPECT_EQ(Store(folder).exit_status, 0);
  ASSERT_TRUE(HasVolumes(2));
  for (const v1::Volume& volume : Volumes()) EXPECT_EQ(volume.geometry().size(2), 5);
  // The same instances, said to be of a third patient.
  for (int k = 0; k < 10; ++k) Change(absl::StrCat(folder, "/slice", k), DCM_PatientID, "P3");
  EXPECT_THAT(StoreAll(folder, "1.2.3.43", 10), testing::Each(dimse::kDataSetDoesNotMatch));
  EXPECT_EQ(Volumes().size(), 2);
}

TEST_F(StorageTest, AnInstanceIsNamedByAUid) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.44", 1);
  const std::string data = DataSetOf(folder + "/slice0");
  for (const char* wrong : {"..", "1.2.3.044.1", "1..2", "1.2.", "a.b"}) {
    EXPECT_NE(StoreOne(wrong, data), dimse::kSuccess) << wrong;
  }
  // Another instance than the request says, and an invalid UID in the data set.
  EXPECT_EQ(StoreOne("1.2.3.44.2", data), dimse::kDataSetDoesNotMatch);
  Change(folder + "/slice0", DCM_SeriesInstanceUID, "1.2.3.044");
  EXPECT_EQ(StoreOne("1.2.3.44.1", DataSetOf(folder + "/slice0")), dimse::kCannotUnderstand);
  EXPECT_EQ(StoreOne("1.2.3.44.1", data), dimse::kSuccess);
}

// The AE title of a peer is mistyped at one start.
TEST_F(StorageTest, ImagesOutliveASlipInTheListOfPeers) {
  const std::vector<std::string> flags = {absl::StrCat("--state_dir=", MakeFolder("state")), "--dicom_quiet=1h"};
  StartServer(flags);
  EXPECT_EQ(Store(Series("ct", "1.2.3.45", 5)).exit_status, 0);
  StopServer();
  StartServer(flags, "SCV 127.0.0.1 -\n");
  EXPECT_EQ(Metric("intrawarp_dicom_spool_instances"), 5);
  EXPECT_THAT(StopServer(), HasSubstr("dicom_unlisted"));
  StartServer({flags[0]});
  ASSERT_TRUE(HasVolumes(1));
  EXPECT_EQ(Volumes()[0].geometry().size(2), 5);
}

// Senders that run at once, however far apart they are.
TEST_F(StorageTest, ASeriesMayComeInSeveralAssociations) {
  StartServer({"--dicom_quiet=1h"});
  const std::string folder = Series("ct", "1.2.3.2", 6, 12, /*announced=*/6);
  std::vector<std::unique_ptr<Process>> senders;
  for (int k = 0; k < 6; ++k) {
    senders.push_back(
        std::make_unique<Process>(std::vector<std::string>{"/usr/bin/storescu", "-aet", "SCU", "-aec", "INTRAWARP",
                                                           "127.0.0.1", port_, absl::StrCat(folder, "/slice", k)}));
  }
  for (const auto& sender : senders) EXPECT_EQ(sender->Wait().exit_status, 0);
  ASSERT_TRUE(Eventually([&] {
    const auto volumes = Volumes();
    return volumes.size() == 1 && volumes[0].geometry().size(2) == 6;
  })) << StopServer();
}

TEST_F(StorageTest, SyntaxesThatTheReaderKnowsAreTaken) {
  StartServer();
  int series = 0;
  for (const auto& [option, syntax] :
       std::vector<std::pair<std::string, E_TransferSyntax>>{{"-xi", EXS_LittleEndianImplicit},
                                                             {"-xb", EXS_BigEndianExplicit},
                                                             {"-xs", EXS_JPEGProcess14SV1},
                                                             {"-xr", EXS_RLELossless},
                                                             {"-xd", EXS_DeflatedLittleEndianExplicit}}) {
    const std::string uid = absl::StrCat("1.2.3.3.", ++series), name = absl::StrCat("s", series);
    io::DicomMaker maker(MakeFolder(name));
    for (const double z : {0.0, 2.0, 4.0}) {
      const auto file = maker.Slice({.z = z, .series = uid});
      file->getDataset()->putAndInsertString(DCM_SOPInstanceUID, absl::StrCat(uid, ".", z + 1).c_str());
      maker.Save(*file, absl::StrCat(z), syntax);
    }
    const ProcessResult stored = Store(Path(name), "SCU", {option});
    EXPECT_EQ(stored.exit_status, 0) << option << stored.err;
  }
  EXPECT_TRUE(HasVolumes(5)) << Metrics();
}

TEST_F(StorageTest, OnlyKnownPeersAreServed) {
  StartServer();
  EXPECT_TRUE(Echo());
  EXPECT_TRUE(Echo("OTHER"));
  EXPECT_FALSE(Echo("NOBODY"));
  EXPECT_FALSE(Echo("AWAY"));  // listed with another address
  EXPECT_FALSE(Echo("SCU", "ANOTHER"));
  EXPECT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_associations_total{outcome=\"refused\"}") == 3; }));
  const std::string log = StopServer();
  EXPECT_THAT(log, HasSubstr("the calling AE title is not listed"));
  EXPECT_THAT(log, HasSubstr("the calling AE title has another address"));
  EXPECT_FALSE(absl::StrContains(log, "NOBODY"));
}

TEST_F(StorageTest, UnknownServicesAndSyntaxesAreNotAccepted) {
  StartServer();
  for (const auto& request :
       {RequestFor(kCtStorage, "1.2.840.10008.1.2.4.100"), RequestFor("1.2.840.10008.5.1.4.1.1.88.11")}) {
    EXPECT_THAT(dimse::Association::Request(Connect(), {}, request).status(),
                io::Fails(absl::StatusCode::kFailedPrecondition, "accepts none of the services"));
  }
  EXPECT_TRUE(Echo());
}

TEST_F(StorageTest, ABrokenAssociationMakesNoVolume) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.4", 6);
  {
    const auto connection = Connect();
    auto association = dimse::Association::Request(connection, {}, RequestFor(kCtStorage));
    ASSERT_TRUE(association.ok()) << association.status();
    for (int k = 0; k < 3; ++k) {
      const std::string data = DataSetOf(absl::StrCat(folder, "/slice", k));
      ASSERT_TRUE((*association)->Send(1, StoreCommand(absl::StrCat("1.2.3.4.", k + 1)), data).ok());
      const auto response = (*association)->ReceiveCommand();
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(response->command.status(), dimse::kSuccess);
    }
    // The fourth breaks off in its data set.
    dimse::Command command = StoreCommand("1.2.3.4.4");
    ASSERT_TRUE(
        connection
            ->Write(absl::StrCat(dimse::EncodeFragmentHeader(1, true, true, dimse::EncodeCommand(command).size()),
                                 dimse::EncodeCommand(command), dimse::EncodeFragmentHeader(1, false, true, 5000),
                                 std::string(99, 'x')),
                    Soon())
            .ok());
    connection->Abort();
  }
  ASSERT_TRUE(Eventually([&] { return Metric(kBroken) == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // longer than --dicom_quiet
  EXPECT_TRUE(Volumes().empty());
  EXPECT_EQ(Metric("intrawarp_dicom_spool_instances"), 3);
  // The peer sends it all again.
  EXPECT_EQ(Store(folder).exit_status, 0);
  ASSERT_TRUE(HasVolumes(1));
  EXPECT_EQ(Volumes()[0].geometry().size(2), 6);
  EXPECT_TRUE(SpoolIsEmpty());
}

TEST_F(StorageTest, ASenderThatIsKilledMakesNoShortVolume) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.5", 100, 128);
  {
    Process sender(StoreArguments(folder));
    ASSERT_TRUE(Eventually([&] { return Metric(kStored) >= 1; }));
    sender.Signal(SIGKILL);
    sender.Wait();
  }
  ASSERT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_associations") == 0; }));
  EXPECT_EQ(Store(folder).exit_status, 0);
  ASSERT_TRUE(HasVolumes(1));
  for (const v1::Volume& volume : Volumes()) EXPECT_EQ(volume.geometry().size(2), 100);
}

TEST_F(StorageTest, AFullSpoolIsToldToTheSender) {
  StartServer({"--dicom_spool_bytes=64KiB"});
  const std::string large = Series("large", "1.2.3.6", 6, 128);  // 32 KiB a slice
  const ProcessResult refused = Store(large, "SCU", {"-v"});
  EXPECT_NE(refused.exit_status, 0);
  EXPECT_THAT(refused.out + refused.err, HasSubstr("OutOfResources"));
  EXPECT_GE(Metric(kNoRoom), 1);
  EXPECT_TRUE(Volumes().empty());
  // A small enough data set is still received once there is room.
  const std::string small = Series("small", "1.2.3.7", 3);
  EXPECT_EQ(Store(small, "OTHER").exit_status, 0);
  EXPECT_TRUE(HasVolumes(1));
}

TEST_F(StorageTest, ARefusedInstanceLeavesItsSeriesIncomplete) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.8", 5);
  {
    DcmFileFormat broken;
    ASSERT_TRUE(broken.loadFile((folder + "/slice4").c_str()).good());
    broken.getDataset()->putAndInsertString(DCM_ImagePositionPatient, "1\\2");
    ASSERT_TRUE(broken.saveFile((folder + "/slice4").c_str()).good());
  }
  (void)Store(folder, "SCU", {"--no-halt"});  // its exit status says nothing of single images
  EXPECT_EQ(Metric(kUnreadable), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_TRUE(Volumes().empty());
  EXPECT_EQ(Metric("intrawarp_dicom_spool_instances"), 4);
}

// A picture in colour and an unusable slice, in one association with good series and a good one's own.
TEST_F(StorageTest, AnUnusableInstanceCostsItsOwnSeriesAlone) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.20", 5);
  io::DicomMaker maker(folder);
  const auto save = [&](const std::string& name, const std::string& series,
                        const std::function<void(DcmDataset&)>& change) {
    const auto file = maker.Slice({.z = 100, .series = series});
    file->getDataset()->putAndInsertString(DCM_SOPInstanceUID, absl::StrCat(series, ".900").c_str());
    change(*file->getDataset());
    maker.Save(*file, name);
  };
  const auto colour = [](DcmDataset& data) {
    data.putAndInsertString(DCM_SOPClassUID, UID_SecondaryCaptureImageStorage);
    data.putAndInsertUint16(DCM_SamplesPerPixel, 3);
    data.putAndInsertString(DCM_PhotometricInterpretation, "RGB");
  };
  save("capture", "1.2.3.20", colour);
  save("other_capture", "1.2.3.21", colour);
  save("no_image", "1.2.3.22", [](DcmDataset& data) { data.findAndDeleteElement(DCM_PixelData); });
  save("unusable", "1.2.3.23", [](DcmDataset& data) { data.putAndInsertString(DCM_ImagePositionPatient, "1\\2"); });
  (void)Store(folder, "SCU", {"--no-halt"});
  EXPECT_EQ(Metric(kUnreadable), 4);
  ASSERT_TRUE(HasVolumes(1)) << Metrics();
  EXPECT_EQ(Volumes()[0].geometry().size(2), 5);
  EXPECT_TRUE(SpoolIsEmpty());
}

// The series of an instance that breaks off is known from what came of it.
TEST_F(StorageTest, AnInstanceThatBreaksOffHoldsBackItsOwnSeriesAlone) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.24", 4), other = Series("other", "1.2.3.25", 3);
  {
    const auto connection = Connect();
    auto association = dimse::Association::Request(connection, {}, RequestFor(kCtStorage));
    ASSERT_TRUE(association.ok()) << association.status();
    const std::string command = dimse::EncodeCommand(StoreCommand("1.2.3.24.4"));
    const std::string data = DataSetOf(folder + "/slice3");
    const size_t part = data.size() - 100;  // in its pixels
    ASSERT_TRUE(connection
                    ->Write(absl::StrCat(dimse::EncodeFragmentHeader(1, true, true, command.size()), command,
                                         dimse::EncodeFragmentHeader(1, false, false, part), data.substr(0, part)),
                            Soon())
                    .ok());
    ASSERT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_spool_used_bytes") > 0; }));
    connection->Abort();
  }
  ASSERT_TRUE(Eventually([&] { return Metric(kBroken) == 1; }));
  EXPECT_EQ(Store(other).exit_status, 0);
  ASSERT_TRUE(HasVolumes(1)) << Metrics();
  EXPECT_EQ(Volumes()[0].geometry().size(2), 3);
  EXPECT_EQ(Store(folder).exit_status, 0);
  ASSERT_TRUE(HasVolumes(2)) << Metrics();
}

TEST_F(StorageTest, AVolumeThatTheRulesRefuseIsReported) {
  StartServer();
  const std::string folder = Series("ct", "1.2.3.9", 6);
  std::filesystem::remove(folder + "/slice2");
  EXPECT_EQ(Store(folder).exit_status, 0);
  EXPECT_TRUE(Eventually([&] { return Metric(kRefusedVolumes) == 1; }));
  EXPECT_TRUE(SpoolIsEmpty());
  EXPECT_TRUE(Volumes().empty());
  EXPECT_THAT(StopServer(), HasSubstr("slices: "));
}

TEST_F(StorageTest, TwentyAtOnce) {
  StartServer();
  std::vector<std::unique_ptr<Process>> senders;
  for (int k = 0; k < 20; ++k) {
    const std::string folder = Series(absl::StrCat("ct", k), absl::StrCat("1.2.4.", k + 1), 3 + k);
    senders.push_back(std::make_unique<Process>(StoreArguments(folder)));
  }
  for (const auto& sender : senders) EXPECT_EQ(sender->Wait().exit_status, 0);
  ASSERT_TRUE(HasVolumes(20));
  std::set<int64_t> slices;
  for (const v1::Volume& volume : Volumes()) slices.insert(volume.geometry().size(2));
  EXPECT_EQ(slices.size(), 20);
  EXPECT_TRUE(SpoolIsEmpty());
}

TEST_F(StorageTest, AssociationsAreLimitedForEachPeerAndInAll) {
  StartServer({"--dicom_max_associations=3"}, "SCU 127.0.0.1 - associations=2\nOTHER 127.0.0.1 -\n");
  const auto request = [&](const std::string& ae) {
    dimse::AssociateRequest request = RequestFor(kVerificationClass);
    request.calling_ae = ae;
    return dimse::Association::Request(Connect(), {}, request);
  };
  auto first = request("SCU"), second = request("SCU");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(request("SCU").status(), io::Fails(absl::StatusCode::kUnavailable, "reason 2, transient"));
  auto third = request("OTHER");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_THAT(request("OTHER").status(), io::Fails(absl::StatusCode::kUnavailable, "reason 2, transient"));
  EXPECT_EQ(Metric("intrawarp_dicom_associations"), 3);
  (*first)->Release();
  EXPECT_TRUE(Eventually([&] { return Echo(); }));
}

TEST_F(StorageTest, APeerThatTricklesIsEndedAndDelaysNoOther) {
  // Longer than a peer that means well takes on a busy machine.
  StartServer({"--dicom_timeout=5s", "--dicom_idle_timeout=5s"});
  // One that stops in its request for an association, one in a unit of data, one that sends a byte now and then, and
  // one that says nothing more.
  const auto mute = Connect();
  ASSERT_TRUE(mute->Write(dimse::EncodeAssociateRequest(RequestFor(kCtStorage)).substr(0, 20), Soon()).ok());
  const auto half = Connect();
  ASSERT_TRUE(dimse::Association::Request(half, {}, RequestFor(kCtStorage)).ok());
  const std::string command = dimse::EncodeCommand(StoreCommand("1.2.3"));
  ASSERT_TRUE(half->Write(absl::StrCat(dimse::EncodeFragmentHeader(1, true, true, command.size()), command,
                                       dimse::EncodeFragmentHeader(1, false, false, 1000), "x"),
                          Soon())
                  .ok());
  const auto slow = Connect();
  ASSERT_TRUE(dimse::Association::Request(slow, {}, RequestFor(kCtStorage)).ok());
  ASSERT_TRUE(
      slow->Write(absl::StrCat(dimse::EncodeFragmentHeader(1, true, true, command.size()), command), Soon()).ok());
  const auto idle = Connect();
  ASSERT_TRUE(dimse::Association::Request(idle, {}, RequestFor(kCtStorage)).ok());

  EXPECT_EQ(Store(Series("ct", "1.2.3.10", 5), "OTHER").exit_status, 0);
  // Whole units, but few bytes.
  const std::string unit = dimse::EncodeFragmentHeader(1, false, false, 1) + "x";
  EXPECT_TRUE(Eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return !slow->Write(unit, Soon()).ok() || Metric(kTimeouts) == 4;
  }));
  EXPECT_TRUE(Eventually([&] { return Metric(kTimeouts) == 4; })) << Metrics();
  EXPECT_TRUE(HasVolumes(1));
  EXPECT_TRUE(SpoolIsEmpty());
}

TEST_F(StorageTest, HostileBytesEndTheirAssociationAlone) {
  StartServer();
  const std::string request = dimse::EncodeAssociateRequest(RequestFor(kCtStorage));
  const std::string command = dimse::EncodeCommand(StoreCommand("1.2.3"));
  const std::string store = absl::StrCat(dimse::EncodeFragmentHeader(1, true, true, command.size()), command);
  const std::string huge("\x04\x00\xff\xff\xff\xff", 6);
  std::vector<std::string> before = {"GET / HTTP/1.1\r\n\r\n",
                                     std::string("\x01\x00\xff\xff\xff\xff", 6),
                                     std::string("\x01\x00\x00\x00\x00\x00", 6),
                                     std::string(1000, '\xff'),
                                     dimse::EncodeRelease(dimse::PduType::kReleaseRequest),
                                     huge};
  std::vector<std::string> after = {
      huge,
      std::string("\x04\x00\x00\x00\x00\x00", 6),
      // A fragment that is longer than its unit, one of a context that nobody accepted, one that is not a command.
      std::string("\x04\x00\x00\x00\x00\x06\xff\xff\xff\xff\x01\x03", 12),
      absl::StrCat(dimse::EncodeFragmentHeader(99, true, true, 4), "abcd"),
      absl::StrCat(dimse::EncodeFragmentHeader(1, false, true, 4), "abcd"),
      absl::StrCat(dimse::EncodeFragmentHeader(1, true, true, 8), std::string("\x00\x00\x00\x01\xff\xff\xff\xff", 8)),
      // A command after a command whose data set is due.
      absl::StrCat(store, store),
      request,
  };
  // A command that never ends.
  std::string flood;
  for (int k = 0; k < 80; ++k)
    absl::StrAppend(&flood, dimse::EncodeFragmentHeader(1, true, false, 1024), std::string(1024, '\0'));
  after.push_back(flood);
  for (const std::string& bytes : before) {
    const auto connection = Connect();
    (void)connection->Write(bytes, Soon());
    connection->Close(Soon());
  }
  for (const std::string& bytes : after) {
    const auto connection = Connect();
    const auto association = dimse::Association::Request(connection, {}, RequestFor(kCtStorage));
    ASSERT_TRUE(association.ok()) << association.status();
    (void)connection->Write(bytes, Soon());
    connection->Close(Soon());
  }
  EXPECT_TRUE(Eventually([&] { return Metric(kProtocol) >= static_cast<double>(after.size()); })) << Metrics();
  // Bytes that are not data sets, with lengths of their own.
  auto association = dimse::Association::Request(Connect(), {}, RequestFor(kCtStorage));
  ASSERT_TRUE(association.ok()) << association.status();
  std::mt19937 random(std::random_device{}());
  const std::string good = DataSetOf(Series("one", "1.2.3.11", 1) + "/slice0");
  for (int run = 0; run < 100; ++run) {
    std::string data = good.substr(0, random() % good.size());
    for (int k = 0; k < 8 && !data.empty(); ++k)
      data[random() % std::min<size_t>(data.size(), 600)] = static_cast<char>(random());
    ASSERT_TRUE((*association)->Send(1, StoreCommand("1.2.3"), data).ok());
    const auto response = (*association)->ReceiveCommand();
    ASSERT_TRUE(response.ok()) << response.status();
  }
  (*association)->Release();
  EXPECT_TRUE(Echo());
}

TEST_F(StorageTest, AStopDoesNotWaitForIdlePeers) {
  StartServer({"--drain_timeout=200ms"});
  const auto idle = Connect();
  ASSERT_TRUE(dimse::Association::Request(idle, {}, RequestFor(kCtStorage)).ok());
  const auto mute = Connect();
  StopServer();
}

TEST_F(StorageTest, NothingOfThePatientLeavesTheServer) {
  MakeFolder("audit");
  StartServer({absl::StrCat("--audit_dir=", Path("audit"))});
  const std::vector<std::pair<DcmTagKey, std::string>> planted = {{DCM_PatientName, "Zaunkoenig^Walpurga"},
                                                                  {DCM_PatientID, "PID-8675309"},
                                                                  {DCM_PatientBirthDate, "19310417"},
                                                                  {DCM_AccessionNumber, "ACC-90210"},
                                                                  {DCM_StudyDate, "20190728"},
                                                                  {DCM_StudyDescription, "Leberresektion"},
                                                                  {DCM_SeriesDescription, "Sonderserie"},
                                                                  {DCM_InstitutionName, "Hirschhorn"},
                                                                  {DCM_StudyInstanceUID, "1.2.826.0.11223344"}};
  const std::string series = "1.2.826.0.55667788";
  const auto plant = [&](const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      DcmFileFormat file;
      ASSERT_TRUE(file.loadFile(entry.path().c_str()).good());
      for (const auto& [tag, value] : planted) file.getDataset()->putAndInsertString(tag, value.c_str());
      ASSERT_TRUE(file.saveFile(entry.path().c_str()).good());
    }
  };
  const std::string good = Series("good", series, 4), gap = Series("gap", series + ".2", 5);
  std::filesystem::remove(gap + "/slice1");
  plant(good);
  plant(gap);
  EXPECT_EQ(Store(good).exit_status, 0);
  EXPECT_EQ(Store(gap).exit_status, 0);
  // An instance that is refused, and a stranger whose name is a patient's.
  {
    auto association = dimse::Association::Request(Connect(), {}, RequestFor(kCtStorage));
    ASSERT_TRUE(association.ok());
    ASSERT_TRUE((*association)->Send(1, StoreCommand("1.2.826.99887766"), "Zaunkoenig").ok());
    EXPECT_EQ((*association)->ReceiveCommand()->command.status(), dimse::kCannotUnderstand);
    (*association)->Release();
  }
  EXPECT_FALSE(Echo("WALPURGA"));
  ASSERT_TRUE(HasVolumes(1));
  ASSERT_TRUE(Eventually([&] { return Metric(kRefusedVolumes) == 1; }));
  std::string everything = Metrics();
  for (const v1::Volume& volume : Volumes()) everything += volume.DebugString();
  everything += StopServer();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "audit")) everything += Get(entry.path());
  EXPECT_TRUE(absl::StrContains(everything, "dicom.Volume"));
  everything = absl::AsciiStrToLower(everything);
  for (const char* word : {"zaunkoenig", "walpurga", "8675309", "19310417", "90210", "20190728", "leberresektion",
                           "sonderserie", "hirschhorn", "11223344", "55667788", "99887766"}) {
    EXPECT_FALSE(absl::StrContains(everything, word)) << word;
  }
}

TEST_F(StorageTest, TlsWantsACertificate) {
  const TestCertificate authority = MakeAuthority("hospital"), stranger = MakeAuthority("stranger");
  const TestCertificate server = MakeServerCertificate(authority);
  const TestCertificate peer = MakeCertificate(authority, {.common_name = "scu"});
  const TestCertificate other = MakeCertificate(stranger, {.common_name = "scu"});
  StartServer({absl::StrCat("--dicom_tls_cert=", Put("cert.pem", server.certificate)),
               absl::StrCat("--dicom_tls_key=", Put("key.pem", server.key)),
               absl::StrCat("--dicom_tls_ca=", Put("ca.pem", authority.certificate))});
  const std::string folder = Series("ct", "1.2.3.12", 4);
  const auto with = [&](const std::string& name, const TestCertificate& certificate) -> std::vector<std::string> {
    return {"+tls", Put(name + ".key", certificate.key), Put(name + ".pem", certificate.certificate), "+cf",
            Path("ca.pem")};
  };
  EXPECT_NE(Store(folder).exit_status, 0);  // plain text
  EXPECT_NE(Store(folder, "SCU", with("other", other)).exit_status, 0);
  EXPECT_EQ(Metric(kStored), 0);
  const ProcessResult stored = Store(folder, "SCU", with("peer", peer));
  EXPECT_EQ(stored.exit_status, 0) << stored.err;
  EXPECT_TRUE(HasVolumes(1));
}

// OpenSSL writes to its socket without MSG_NOSIGNAL: the second answer to a peer that has left raises SIGPIPE.
TEST_F(StorageTest, ATlsPeerThatGoesAwayDoesNotEndTheServer) {
  const TestCertificate authority = MakeAuthority("hospital");
  const TestCertificate server = MakeServerCertificate(authority);
  const TestCertificate peer = MakeCertificate(authority, {.common_name = "scu"});
  StartServer({absl::StrCat("--dicom_tls_cert=", Put("cert.pem", server.certificate)),
               absl::StrCat("--dicom_tls_key=", Put("key.pem", server.key)),
               absl::StrCat("--dicom_tls_ca=", Put("ca.pem", authority.certificate))});
  const auto tls = dimse::TlsContext::Create({peer.certificate, peer.key, authority.certificate});
  ASSERT_TRUE(tls.ok()) << tls.status();
  dimse::Command echo;
  echo.field = dimse::kEchoRequest;
  echo.message_id = 1;
  echo.elements.SetUid(dimse::kAffectedSopClass, kVerificationClass);
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const auto connection = Connect();
    const absl::Status shaken = connection->ConnectTls(**tls, Soon());
    ASSERT_TRUE(shaken.ok()) << shaken;
    auto association = dimse::Association::Request(connection, {}, RequestFor(kVerificationClass));
    ASSERT_TRUE(association.ok()) << association.status();
    std::string many;
    for (int k = 0; k < 200; ++k) {
      const std::string command = dimse::EncodeCommand(echo);
      absl::StrAppend(&many, dimse::EncodeFragmentHeader(1, true, true, command.size()), command);
    }
    ASSERT_TRUE(connection->Write(many, Soon()).ok());
  }
  EXPECT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_associations") == 0; }));
  EXPECT_EQ(Metric(kBroken), kRounds);
}

TEST_F(StorageTest, VolumesAreKeptOverARestart) {
  const std::vector<std::string> flags = {absl::StrCat("--state_dir=", MakeFolder("state"))};
  StartServer(flags);
  EXPECT_EQ(Store(Series("ct", "1.2.3.13", 4)).exit_status, 0);
  ASSERT_TRUE(HasVolumes(1));
  const v1::Volume volume = Volumes()[0];
  const io::DicomProvenance from = io::ListDicom(Path("ct"))->volumes[0].provenance;
  EXPECT_EQ(volume.provenance().source(), v1::PROVENANCE_SOURCE_STORAGE);
  EXPECT_EQ(volume.provenance().modality(), "CT");
  EXPECT_EQ(absl::BytesToHexString(volume.provenance().series_hash()), from.series);
  EXPECT_EQ(absl::BytesToHexString(volume.provenance().frame_of_reference_hash()), from.frame_of_reference);
  EXPECT_NE(from.frame_of_reference, "");
  StopServer();
  StartServer(flags);
  ASSERT_EQ(Volumes().size(), 1);
  EXPECT_EQ(Volumes()[0].name(), volume.name());
  EXPECT_EQ(Volumes()[0].provenance().SerializeAsString(), volume.provenance().SerializeAsString());
}

// Images that were answered 0x0000 are there after a stop and after a kill, and a series becomes a volume if it was
// whole.
TEST_F(StorageTest, ImagesThatAreNoVolumesYetOutliveARestart) {
  const std::vector<std::string> flags = {absl::StrCat("--state_dir=", MakeFolder("state"))};
  std::vector<std::string> slow = flags;
  slow.push_back("--dicom_quiet=1h");
  StartServer(slow);
  EXPECT_EQ(Store(Series("one", "1.2.3.30", 4)).exit_status, 0);
  EXPECT_THAT(StopServer(), HasSubstr("dicom_kept"));
  // A server that knows archives and no peers leaves them.
  Put("remotes", "main get ARCHIVE 127.0.0.1:104 plain\n");
  client::Process importer({INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu", flags[0],
                            absl::StrCat("--dicom_spool=", Path("spool")),
                            absl::StrCat("--dicom_remotes=", Path("remotes"))});
  importer.WaitForLine("ready ");
  importer.Signal(SIGTERM);
  const client::ProcessResult imported = importer.Wait();
  EXPECT_EQ(imported.exit_status, 0) << imported.err;
  EXPECT_THAT(imported.err, HasSubstr("dicom_kept"));
  StartServer(slow);
  EXPECT_EQ(Metric("intrawarp_dicom_spool_instances"), 4);
  EXPECT_EQ(Store(Series("two", "1.2.3.31", 5)).exit_status, 0);
  const std::string third = Series("three", "1.2.3.32", 6);
  const auto connection = Connect();
  auto association = dimse::Association::Request(connection, {}, RequestFor(kCtStorage));
  ASSERT_TRUE(association.ok()) << association.status();
  for (int k = 0; k < 3; ++k) {
    const std::string data = DataSetOf(absl::StrCat(third, "/slice", k));
    ASSERT_TRUE((*association)->Send(1, StoreCommand(absl::StrCat("1.2.3.32.", k + 1)), data).ok());
    EXPECT_EQ((*association)->ReceiveCommand()->command.status(), dimse::kSuccess);
  }
  server_->process().Signal(SIGKILL);
  server_->process().Wait();
  StartServer(flags);
  ASSERT_TRUE(HasVolumes(2));
  EXPECT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_spool_instances") == 3; }));
  // The rest of the third.
  for (int k = 0; k < 3; ++k) std::filesystem::remove(absl::StrCat(third, "/slice", k));
  EXPECT_EQ(Store(third).exit_status, 0);
  ASSERT_TRUE(HasVolumes(3));
  std::set<int64_t> slices;
  for (const v1::Volume& volume : Volumes()) slices.insert(volume.geometry().size(2));
  EXPECT_THAT(slices, testing::ElementsAre(4, 5, 6));
  EXPECT_TRUE(SpoolIsEmpty());
}

TEST_F(StorageTest, ASeriesWithoutRoomWaitsForIt) {
  StartServer({"--resident_bytes=2200KiB"});  // room for two of these volumes, each within half of it
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(Store(Series(absl::StrCat("s", k), absl::StrCat("1.2.3.33.", k), 4, 200)).exit_status, 0);
  }
  ASSERT_TRUE(HasVolumes(2)) << Metrics();
  EXPECT_TRUE(Eventually([&] { return Metric("intrawarp_dicom_volumes_total{outcome=\"deferred\"}") == 1; }))
      << Metrics();
  EXPECT_EQ(Metric("intrawarp_dicom_spool_instances"), 4);
  const std::vector<v1::Volume> before = Volumes();
  EXPECT_THAT(StopServer(), HasSubstr("dicom_series_waits"));
  StartServer();
  ASSERT_TRUE(HasVolumes(1));
  for (const v1::Volume& volume : before) EXPECT_NE(volume.name(), Volumes()[0].name());
  EXPECT_TRUE(SpoolIsEmpty());
}

TEST_F(StorageTest, AnExposedPortNeedsCertificates) {
  Put("peers", "SCU 127.0.0.1 -\n");
  const auto start = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu",
                                 "--check_config", "--dicom_listen=0.0.0.0:0"});
    return client::RunProcess(flags);
  };
  const std::string peers = absl::StrCat("--dicom_peers=", Path("peers"));
  EXPECT_THAT(start({peers}).err, HasSubstr("--dicom_listen=0.0.0.0:0: is not a loopback address"));
  EXPECT_EQ(start({peers, "--dicom_insecure_any_address"}).exit_status, 0);
  EXPECT_THAT(start({"--dicom_insecure_any_address"}).err, HasSubstr("--dicom_peers"));
  Put("peers", "SCU nowhere -\n");
  EXPECT_THAT(start({peers, "--dicom_insecure_any_address"}).err, HasSubstr("--dicom_peers: line 1"));
}

}  // namespace
}  // namespace intrawarp::server

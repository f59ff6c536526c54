// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/instance_file.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "io/file/digest.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"
#include "tests/server/pacs/series_maker.h"

namespace intrawarp::server {
namespace {

using io::Fails;
using io::Succeeds;

constexpr char kInstanceUid[] = "1.2.3.4";

class InstanceFileTest : public io::FileTest {
 protected:
  // The path of a slice with this change.
  std::string Slice(const std::function<void(DcmDataset&)>& change = [](DcmDataset&) {}) {
    const auto file = maker_.Slice({});
    DcmDataset& data = *file->getDataset();
    data.putAndInsertString(DCM_SOPInstanceUID, kInstanceUid);
    data.putAndInsertString(DCM_StudyInstanceUID, kMadeStudy);
    data.putAndInsertString(DCM_PatientID, "4711");
    change(data);
    return maker_.Save(*file, absl::StrCat("slice-", ++saved_));
  }
  InstanceDescription Described(const std::function<void(DcmDataset&)>& change = [](DcmDataset&) {}) {
    return DescribeInstance(Slice(change), nullptr);
  }

  io::DicomMaker maker_{folder_.string()};
  int saved_ = 0;
};

TEST_F(InstanceFileTest, AHeaderIsWhatDcmtkReads) {
  // Lengths that are odd and even.
  for (const std::string& instance : {std::string("1.2.3"), std::string("1.2.34")}) {
    const std::string header = FileHeader(UID_CTImageStorage, instance, UID_LittleEndianExplicitTransferSyntax);
    // PatientID, explicit: the first element of a data set.
    const std::string path = Put("file", header + std::string("\x10\0\x20\0LO\4\0"
                                                              "4711",
                                                              12));
    DcmFileFormat file;
    ASSERT_TRUE(file.loadFile(path.c_str(), EXS_Unknown, EGL_noChange, DCM_MaxReadLength, ERM_fileOnly).good());
    DcmMetaInfo& meta = *file.getMetaInfo();
    const auto text = [&](const DcmTagKey& tag) {
      OFString value;
      EXPECT_TRUE(meta.findAndGetOFString(tag, value).good()) << tag.toString();
      return std::string(value.c_str());
    };
    EXPECT_EQ(text(DCM_MediaStorageSOPClassUID), UID_CTImageStorage);
    EXPECT_EQ(text(DCM_MediaStorageSOPInstanceUID), instance);
    EXPECT_EQ(text(DCM_TransferSyntaxUID), UID_LittleEndianExplicitTransferSyntax);
    EXPECT_FALSE(text(DCM_ImplementationClassUID).empty());
    const Uint8* version = nullptr;
    unsigned long bytes = 0;
    ASSERT_TRUE(meta.findAndGetUint8Array(DCM_FileMetaInformationVersion, version, &bytes).good());
    ASSERT_EQ(bytes, 2);
    EXPECT_EQ(version[0], 0);
    EXPECT_EQ(version[1], 1);
    Uint32 length = 0;
    ASSERT_TRUE(meta.findAndGetUint32(DCM_FileMetaInformationGroupLength, length).good());
    EXPECT_EQ(length, header.size() - 128 - 4 - 12) << "what follows its element";
    OFString id;
    EXPECT_TRUE(file.getDataset()->findAndGetOFString(DCM_PatientID, id).good());
    EXPECT_EQ(id, "4711");
  }
}

TEST_F(InstanceFileTest, ASliceTellsItsSeriesAndItself) {
  const InstanceDescription described = Described();
  EXPECT_THAT(described.status, Succeeds());
  EXPECT_TRUE(described.is_slice);
  EXPECT_TRUE(described.has_room);
  EXPECT_EQ(described.series, io::SeriesHash(io::kSeriesUid));
  EXPECT_EQ(described.group.substr(0, described.series.size()), described.series);
  EXPECT_EQ(described.group.size(), described.series.size() + 16);
  EXPECT_EQ(described.instance, InstanceHash(kInstanceUid));
  EXPECT_EQ(described.announced, -1);
}

TEST_F(InstanceFileTest, SlicesOfAnotherPatientOrStudyAreAnotherGroup) {
  const std::string group = Described().group;
  EXPECT_EQ(Described([](DcmDataset& data) { data.putAndInsertString(DCM_SOPInstanceUID, "1.2.3.5"); }).group, group);
  for (const auto& change : std::vector<std::function<void(DcmDataset&)>>{
           [](DcmDataset& data) { data.putAndInsertString(DCM_PatientID, "4712"); },
           [](DcmDataset& data) { data.putAndInsertString(DCM_StudyInstanceUID, "1.2.6"); },
           [](DcmDataset& data) { data.putAndInsertString(DCM_SeriesInstanceUID, "1.2.7"); }}) {
    EXPECT_NE(Described(change).group, group);
  }
  EXPECT_EQ(Described([](DcmDataset& data) { data.putAndInsertString(DCM_PatientID, "4712"); }).series,
            Described().series);
}

TEST_F(InstanceFileTest, TellsHowManyImagesItsSeriesHas) {
  const auto announced = [&](const char* number) {
    return Described([=](DcmDataset& data) { data.putAndInsertString(DCM_ImagesInAcquisition, number); }).announced;
  };
  EXPECT_EQ(announced("24"), 24);
  EXPECT_EQ(announced("0"), -1);
  EXPECT_EQ(announced("many"), -1);
}

TEST_F(InstanceFileTest, WithoutASeriesOrAUidItBelongsNowhere) {
  const InstanceDescription stray = Described([](DcmDataset& data) { delete data.remove(DCM_SeriesInstanceUID); });
  EXPECT_THAT(stray.status, Fails(absl::StatusCode::kInvalidArgument, "has no series"));
  EXPECT_EQ(stray.series, "");
  EXPECT_EQ(stray.group, "") << "not that of every stray of the patient";
  const InstanceDescription nameless = Described([](DcmDataset& data) { delete data.remove(DCM_SOPInstanceUID); });
  EXPECT_EQ(nameless.instance, "");
  const InstanceDescription bad =
      Described([](DcmDataset& data) { data.putAndInsertString(DCM_SOPInstanceUID, "../../etc"); });
  EXPECT_THAT(bad.status, Fails(absl::StatusCode::kInvalidArgument, "uid: SOPInstanceUID"));
}

TEST_F(InstanceFileTest, WhatIsNotASliceIsSaidSo) {
  const InstanceDescription colour =
      Described([](DcmDataset& data) { data.putAndInsertUint16(DCM_SamplesPerPixel, 3); });
  EXPECT_FALSE(colour.is_slice);
  EXPECT_FALSE(colour.status.ok());
  const InstanceDescription report = Described([](DcmDataset& data) {
    delete data.remove(DCM_PixelData);
    delete data.remove(DCM_Rows);
    delete data.remove(DCM_Columns);
  });
  EXPECT_FALSE(report.is_slice);
  EXPECT_THAT(report.status, Fails(absl::StatusCode::kInvalidArgument, "holds no image"));
}

TEST_F(InstanceFileTest, TheReaderSaysWhatItCannotUse) {
  const InstanceDescription described =
      Described([](DcmDataset& data) { data.putAndInsertString(DCM_PixelSpacing, "0\\0"); });
  EXPECT_FALSE(described.status.ok());
  EXPECT_EQ(described.series, io::SeriesHash(io::kSeriesUid)) << "what is known is told all the same";
  EXPECT_TRUE(described.has_room);
  EXPECT_FALSE(DescribeInstance(Put("text", "no DICOM"), nullptr).status.ok());
  EXPECT_FALSE(DescribeInstance(Path("nowhere"), nullptr).status.ok());
}

// A peer may break off anywhere, and the file is described as far as it goes.
TEST_F(InstanceFileTest, AnEndThatIsMissingHarmsNobody) {
  const std::string bytes = Get(Slice());
  int described_whole = 0;
  for (size_t length = 0; length <= bytes.size(); length += 7) {
    const InstanceDescription described = DescribeInstance(Put("cut", bytes.substr(0, length)), nullptr);
    EXPECT_TRUE(described.has_room) << length;
    EXPECT_TRUE(described.series.empty() || described.series == io::SeriesHash(io::kSeriesUid)) << length;
    EXPECT_EQ(described.series.empty(), described.group.empty()) << length;
    described_whole += described.status.ok() ? 1 : 0;
  }
  EXPECT_LE(described_whole, 1) << "a cut in the pixels is noticed";
}

TEST_F(InstanceFileTest, WithoutMemoryThereIsNoDescription) {
  const io::DicomRoomFn full = [](int64_t) -> absl::StatusOr<std::shared_ptr<const void>> {
    return absl::ResourceExhaustedError("no room");
  };
  const InstanceDescription described = DescribeInstance(Slice(), full);
  EXPECT_FALSE(described.has_room);
  EXPECT_THAT(described.status, Fails(absl::StatusCode::kResourceExhausted, "no room"));
  EXPECT_TRUE(described.is_slice) << "it may be one";
  EXPECT_EQ(described.series, "");
}

TEST_F(InstanceFileTest, TwoFilesAreReadAtATime) {
  const std::string path = Slice();
  std::atomic<int> reading = 0, most = 0, room = 0;
  const io::DicomRoomFn watch = [&](int64_t bytes) -> absl::StatusOr<std::shared_ptr<const void>> {
    EXPECT_GT(bytes, 0);
    ++room;
    const int now = ++reading;
    int before = most;
    while (before < now && !most.compare_exchange_weak(before, now)) {
    }
    return std::shared_ptr<const void>(new int(0), [&](const int* gone) {
      delete gone;
      --reading;
    });
  };
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) EXPECT_THAT(DescribeInstance(path, watch).status, Succeeds());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(room, 40);
  EXPECT_LE(most, 2);
  EXPECT_EQ(reading, 0);
}

TEST(InstanceHash, IsTheDigestOfTheUidInHexadecimalDigits) {
  EXPECT_EQ(InstanceHash("1.2.3").size(), 64);
  EXPECT_EQ(InstanceHash("1.2.3"), absl::BytesToHexString(io::Sha256Of("1.2.3", 5)));
  EXPECT_NE(InstanceHash("1.2.3"), InstanceHash("1.2.4"));
}

}  // namespace
}  // namespace intrawarp::server

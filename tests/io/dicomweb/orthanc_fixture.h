// SPDX-License-Identifier: Apache-2.0
// Tests of the DICOMweb client against a real archive, with series to send there and to fetch.
#ifndef INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_FIXTURE_H_
#define INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/dicom/dicom.h"
#include "io/dicom/file_meta.h"
#include "io/dicomweb/archive.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/dicomweb/orthanc_archive.h"
#include "tests/io/io_test.h"

namespace intrawarp::dicomweb {

inline constexpr char kStudy[] = "1.2.826.0.1.3680043.2.1125.7.1";

// A file for each instance.
class FilesSink final : public InstanceSink {
 public:
  explicit FilesSink(std::string folder) : folder_(std::move(folder)) { std::filesystem::create_directories(folder_); }
  absl::Status Begin() override {
    file_.open(absl::StrCat(folder_, "/", count_++), std::ios::binary);
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return absl::OkStatus();
  }
  absl::Status End() override {
    file_.close();
    return absl::OkStatus();
  }

 private:
  const std::string folder_;
  int count_ = 0;
  std::ofstream file_;
};

class OrthancTest : public io::FileTest {
 protected:
  void SetUp() override {
    if (!OrthancArchive::IsInstalled()) {
      GTEST_SKIP() << "Orthanc, its DICOMweb plugin and nginx are not all installed";
    }
    orthanc_ = std::make_unique<OrthancArchive>(folder_.string());
    ASSERT_THAT(orthanc_->Start(), io::Succeeds());
    orthanc_port_ = orthanc_->http_port();
    dicom_port_ = orthanc_->dicom_port();
    proxy_port_ = orthanc_->proxy_port();
  }
  void TearDown() override {
    if (orthanc_ == nullptr) return;
    EXPECT_EQ(orthanc_->Stop(), 0);
  }

  HttpOptions Plain() const { return orthanc_->Plain(); }
  HttpOptions Secure() const { return orthanc_->Secure(); }
  std::unique_ptr<Archive> Make(const HttpOptions& options) const {
    auto archive = Archive::Create(options);
    EXPECT_THAT(archive, io::Succeeds());
    return std::move(*archive);
  }

  static std::string SeriesUid(E_TransferSyntax syntax) { return absl::StrCat(kStudy, ".", int{syntax}); }

  // A series of one study in a folder of its own, in this syntax; its files.
  std::vector<std::string> Series(const std::string& name, int slices, E_TransferSyntax syntax) {
    std::filesystem::create_directories(Path(name));
    io::DicomMaker maker(Path(name));
    std::vector<std::string> paths;
    for (int k = 0; k < slices; ++k) {
      io::SliceSpec spec;
      spec.series = SeriesUid(syntax);
      spec.z = 2.5 * k;
      const auto file = maker.Slice(spec);
      file->getDataset()->putAndInsertString(DCM_StudyInstanceUID, kStudy);
      file->getDataset()->putAndInsertString(DCM_PatientID, "4711");
      file->getDataset()->putAndInsertString(DCM_PatientName, "Planted^Name");
      paths.push_back(maker.Save(*file, absl::StrCat("slice", k), syntax));
    }
    return paths;
  }
  // Whole files by instance.
  static std::map<std::string, std::string> FilesOf(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const auto meta = io::ReadFileMeta(entry.path());
      EXPECT_THAT(meta, io::Succeeds());
      files[meta->sop_instance] = Get(entry.path());
    }
    return files;
  }
  // The data set, which an archive keeps; the meta header may be its own.
  static std::string DatasetOf(const std::string& file) { return file.substr(io::ParseFileMeta(file)->size); }

  // Everything that the archive has of the study, in a folder.
  std::map<std::string, std::string> Fetch(const std::string& folder) const {
    const auto archive = Make(Plain());
    const auto found = archive->FindSeries({.keys = {{"StudyInstanceUID", kStudy}}});
    EXPECT_THAT(found, io::Succeeds());
    FilesSink sink(Path(folder));
    for (const FoundSeries& series : found->series) EXPECT_THAT(archive->Retrieve(series, {}, sink), io::Succeeds());
    return FilesOf(Path(folder));
  }
  void ExpectSame(const std::map<std::string, std::string>& back, const std::map<std::string, std::string>& sent) {
    ASSERT_EQ(back.size(), sent.size());
    for (const auto& [instance, file] : sent) {
      ASSERT_TRUE(back.contains(instance));
      EXPECT_TRUE(DatasetOf(back.at(instance)) == DatasetOf(file));
    }
  }

  int orthanc_port_ = 0, dicom_port_ = 0, proxy_port_ = 0;
  std::unique_ptr<OrthancArchive> orthanc_;
};

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_TESTS_IO_DICOMWEB_ORTHANC_FIXTURE_H_

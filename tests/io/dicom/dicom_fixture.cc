// SPDX-License-Identifier: Apache-2.0
#include "tests/io/dicom/dicom_fixture.h"

#include "absl/strings/str_cat.h"
#include "tests/io/dicom/dicom_maker.h"

namespace intrawarp::io {

std::unique_ptr<DcmFileFormat> Enhanced(DicomMaker& maker, const std::vector<int>& order, bool scaled) {
  auto file = maker.Slice({.rows = 10 * static_cast<int>(order.size()), .modality = "MR", .pixel = [&](int x, int y) {
                             return static_cast<uint16_t>(7 * x + 100 * (y % 10) + order[y / 10]);
                           }});
  DcmDataset& d = *file->getDataset();
  d.putAndInsertUint16(DCM_Rows, 10);
  d.putAndInsertString(DCM_NumberOfFrames, absl::StrCat(order.size()).c_str());
  for (const DcmTagKey& tag : {DCM_ImagePositionPatient, DCM_ImageOrientationPatient, DCM_PixelSpacing}) {
    d.findAndDeleteElement(tag);
  }
  DcmItem* shared = nullptr;
  d.findOrCreateSequenceItem(DCM_SharedFunctionalGroupsSequence, shared, 0);
  DcmItem* item = nullptr;
  shared->findOrCreateSequenceItem(DCM_PixelMeasuresSequence, item, 0);
  item->putAndInsertString(DCM_PixelSpacing, "0.75\\0.5");
  shared->findOrCreateSequenceItem(DCM_PlaneOrientationSequence, item, 0);
  item->putAndInsertString(DCM_ImageOrientationPatient, "1\\0\\0\\0\\1\\0");
  for (const int place : order) {
    DcmItem* frame = nullptr;
    d.findOrCreateSequenceItem(DCM_PerFrameFunctionalGroupsSequence, frame, -2);
    frame->findOrCreateSequenceItem(DCM_PlanePositionSequence, item, 0);
    item->putAndInsertString(DCM_ImagePositionPatient, absl::StrCat("-20\\30\\", 2 * place).c_str());
    frame->findOrCreateSequenceItem(DCM_PixelValueTransformationSequence, item, 0);
    item->putAndInsertString(DCM_RescaleSlope, scaled ? absl::StrCat(1 + place).c_str() : "1");
    item->putAndInsertString(DCM_RescaleIntercept, "0");
  }
  return file;
}

}  // namespace intrawarp::io

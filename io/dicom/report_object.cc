// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/report_object.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcuid.h>

#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/object.h"

namespace intrawarp::io {
namespace {

constexpr dicom::ObjectKind kReport = {UID_EncapsulatedPDFStorage, "DOC", "intrawarp registration report", 9004};

}  // namespace

absl::Status WriteDicomReport(const std::string& path, absl::string_view pdf, const std::string& title,
                              const DicomReference& fixed, const DicomReference& moving, const DicomStamp& stamp) {
  INTRAWARP_RETURN_IF_ERROR(CheckSamePatient(fixed, moving));
  if (!absl::StartsWith(pdf, "%PDF-")) {
    return FieldError(absl::StatusCode::kInvalidArgument, "pdf", "does not begin like a PDF");
  }
  dicom::Object object(kReport, fixed, stamp, stamp.new_uid(), stamp.new_uid(), 1);
  dicom::ObjectItem root = object.root();
  root.Text(DCM_ConversionType, "WSD");
  root.Text(DCM_ContentDate, dicom::DateOf(stamp.time));
  root.Text(DCM_ContentTime, dicom::TimeOf(stamp.time));
  root.Text(DCM_AcquisitionDateTime, "");
  root.Text(DCM_BurnedInAnnotation, "NO");
  root.Text(DCM_DocumentTitle, title);
  root.Empty(DCM_ConceptNameCodeSequence);
  root.Text(DCM_VerificationFlag, "UNVERIFIED");
  for (const DicomReference* reference : {&fixed, &moving}) {
    for (const ReferencedInstance& instance : reference->instances) {
      root.AddInstance(DCM_SourceInstanceSequence, instance);
    }
  }
  object.AddCommonReferences({&fixed, &moving}, fixed);
  root.Text(DCM_MIMETypeOfEncapsulatedDocument, "application/pdf");
  std::vector<uint8_t> bytes(pdf.begin(), pdf.end());
  root.Uint32s(DCM_EncapsulatedDocumentLength, {static_cast<uint32_t>(bytes.size())});
  bytes.resize(bytes.size() + bytes.size() % 2);
  root.Bytes(DCM_EncapsulatedDocument, bytes);
  return object.Save(path);
}

}  // namespace intrawarp::io

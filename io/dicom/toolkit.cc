// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/toolkit.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdict.h>
#include <dcmtk/dcmjpeg/djdecode.h>
#include <dcmtk/dcmjpls/djdecode.h>
#include <dcmtk/oflog/oflog.h>

#include "engine/base/field_error.h"

namespace intrawarp::io::dicom {
namespace {

absl::Status Start() {
  OFLog::configure(OFLogger::OFF_LOG_LEVEL);
  DJDecoderRegistration::registerCodecs();
  DJLSDecoderRegistration::registerCodecs();
  if (dcmDataDict.isDictionaryLoaded()) return absl::OkStatus();
  return FieldError(absl::StatusCode::kFailedPrecondition, "dictionary",
                    "DCMTK's dicom.dic is not there; Debian's libdcmtk17 installs it");
}

}  // namespace

absl::Status StartToolkit() {
  static const absl::Status status = Start();
  return status;
}

}  // namespace intrawarp::io::dicom

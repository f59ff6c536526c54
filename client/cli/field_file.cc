// SPDX-License-Identifier: Apache-2.0
#include "client/cli/field_file.h"

#include "absl/strings/str_cat.h"
#include "client/cli/command_context.h"
#include "engine/base/status_macros.h"
#include "io/format/grid_files.h"
#include "io/format/nifti.h"
#include "wire/convert.h"

namespace intrawarp::cli {

absl::Status WriteFieldFile(const std::string& path, v1::FieldEncoding encoding, const v1::AffineMap& affine_part,
                            const client::GridData& field) {
  if (encoding != v1::FIELD_ENCODING_VELOCITY) {
    return Annotate(io::WriteFieldFile(path, field.geometry, field.values.data()), path);
  }
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap affine, AffineMapFromProto(affine_part));
  return Annotate(io::WriteVelocity(path, affine, field.geometry, field.values.data()), path);
}

absl::Status CheckFieldFormat(const v1::FieldRequest& field, const std::string& flag, const std::string& path) {
  if (field.encoding() != v1::FIELD_ENCODING_VELOCITY || io::GridFormatOf(path) == io::GridFormat::kNifti) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": a velocity must go to .nii or .nii.gz"));
}

}  // namespace intrawarp::cli

// SPDX-License-Identifier: Apache-2.0
#include "client/cli/field_file.h"

#include "client/cli/session.h"
#include "client/cpp/convert.h"
#include "engine/base/status_macros.h"
#include "io/nifti.h"

namespace intrawarp {

absl::Status WriteFieldFile(const std::string& path, v1::FieldEncoding encoding, const v1::Matrix& matrix,
                            const GridData& field) {
  if (encoding != v1::FIELD_ENCODING_VELOCITY) {
    return Annotate(WriteField(path, field.geometry, field.values.data()), path);
  }
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap affine, FromProto(matrix));
  return Annotate(WriteVelocity(path, affine, field.geometry, field.values.data()), path);
}

}  // namespace intrawarp

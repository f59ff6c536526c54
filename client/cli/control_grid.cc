// SPDX-License-Identifier: Apache-2.0
#include "client/cli/control_grid.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "io/itk_transform.h"
#include "proto/convert.h"

namespace intrawarp::cli {

absl::Status WriteControlGrid(const std::string& transform, const std::string& path, Session& session) {
  v1::DownloadRequest request;
  request.set_name(transform);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  client::GridData grid;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::FieldHeader header,
                             session.client().DownloadField(request, client::SinkInto(&grid), session.call()));
  io::ControlGridFile file;
  INTRAWARP_ASSIGN_OR_RETURN(file.affine, AffineMapFromProto(header.affine()));
  file.grid = grid.geometry;
  file.coefficients = std::move(grid.values);
  return Annotate(io::WriteItkTransform(path, file), path);
}

}  // namespace intrawarp::cli

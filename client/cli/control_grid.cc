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
  io::ItkTransform file;
  file.kind = io::ItkTransform::Kind::kControlGrid;
  INTRAWARP_ASSIGN_OR_RETURN(file.affine, AffineMapFromProto(header.affine()));
  file.grid = grid.geometry;
  file.vectors = std::move(grid.values);
  return Annotate(io::WriteItkTransform(path, file), path);
}

absl::Status WriteItkFile(const std::string& transform, const std::string& path, Session& session) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Transform stored, session.client().GetTransform(transform, session.call()));
  if (stored.kind() == v1::TRANSFORM_KIND_CONTROL_GRID) return WriteControlGrid(transform, path, session);
  io::ItkTransform file;
  if (stored.kind() == v1::TRANSFORM_KIND_AFFINE) {
    INTRAWARP_ASSIGN_OR_RETURN(file.affine, AffineMapFromProto(stored.affine()));
    return Annotate(io::WriteItkTransform(path, file), path);
  }
  v1::DownloadRequest request;
  request.set_name(transform);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  client::GridData field;
  INTRAWARP_RETURN_IF_ERROR(session.client().DownloadField(request, client::SinkInto(&field), session.call()).status());
  file.kind = io::ItkTransform::Kind::kDisplacement;
  file.grid = field.geometry;
  file.vectors = std::move(field.values);
  return Annotate(io::WriteItkTransform(path, file), path);
}

}  // namespace intrawarp::cli

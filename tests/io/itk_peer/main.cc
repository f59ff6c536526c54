// SPDX-License-Identifier: Apache-2.0
// ITK as a peer of the readers and writers of io; it knows nothing of this tree.
//
//   itk_peer map FILE POINTS OUT          maps points (x y z a line) through a transform file or a vector image
//   itk_peer make KIND FILE GRID...       writes a transform, or a displacement field as a vector image; GRID are 18
//                                         numbers: size, origin, spacing, direction row by row
//   itk_peer copy IN OUT                  reads an image of one channel as double and writes it in another format
//   itk_peer copy_field IN OUT            the same for an image of vectors, as float
//
// Exits with 1 and a line on stderr when ITK fails.
#include <itkAffineTransform.h>
#include <itkBSplineTransform.h>
#include <itkCompositeTransform.h>
#include <itkDisplacementFieldTransform.h>
#include <itkEuler3DTransform.h>
#include <itkImageFileReader.h>
#include <itkImageFileWriter.h>
#include <itkImageRegionIterator.h>
#include <itkScaleTransform.h>
#include <itkSimilarity3DTransform.h>
#include <itkTransformFileReader.h>
#include <itkTransformFileWriter.h>
#include <itkTranslationTransform.h>
#include <itkVersorRigid3DTransform.h>
#include <itkVersorTransform.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <string>
#include <vector>

namespace {

using Transform = itk::Transform<double, 3, 3>;
using Composite = itk::CompositeTransform<double, 3>;
using Field = itk::DisplacementFieldTransform<double, 3>;
using Spline = itk::BSplineTransform<double, 3, 3>;
using VectorImage = itk::Image<itk::Vector<double, 3>, 3>;

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool IsTransformFile(const std::string& path) {
  return EndsWith(path, ".tfm") || EndsWith(path, ".h5") || EndsWith(path, ".txt");
}

// Numbers in [-1, 1), the same on every machine.
class Noise {
 public:
  double operator()() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11) / static_cast<double>(1ULL << 52) - 1;
  }

 private:
  unsigned long long state_ = 42;
};

struct Grid {
  double n[18];
};

VectorImage::Pointer MakeImage(const Grid& grid, Noise& noise) {
  auto image = VectorImage::New();
  VectorImage::SizeType size;
  VectorImage::PointType origin;
  VectorImage::SpacingType spacing;
  VectorImage::DirectionType direction;
  for (int a = 0; a < 3; ++a) {
    size[a] = static_cast<itk::SizeValueType>(grid.n[a]);
    origin[a] = grid.n[3 + a];
    spacing[a] = grid.n[6 + a];
    for (int c = 0; c < 3; ++c) direction[a][c] = grid.n[9 + 3 * a + c];
  }
  image->SetRegions(size);
  image->SetOrigin(origin);
  image->SetSpacing(spacing);
  image->SetDirection(direction);
  image->Allocate();
  for (itk::ImageRegionIterator<VectorImage> it(image, image->GetLargestPossibleRegion()); !it.IsAtEnd(); ++it) {
    itk::Vector<double, 3> v;
    for (int c = 0; c < 3; ++c) v[c] = static_cast<float>(10 * noise());
    it.Set(v);
  }
  return image;
}

Transform::Pointer MakeField(const Grid& grid, Noise& noise) {
  auto field = Field::New();
  field->SetDisplacementField(MakeImage(grid, noise));
  return field.GetPointer();
}

Transform::Pointer MakeSpline(const Grid& grid, Noise& noise) {
  auto spline = Spline::New();
  Spline::FixedParametersType fixed(18);
  for (int i = 0; i < 18; ++i) fixed[i] = grid.n[i];
  spline->SetFixedParameters(fixed);
  Spline::ParametersType parameters(spline->GetNumberOfParameters());
  for (auto& p : parameters) p = static_cast<float>(10 * noise());
  spline->SetParametersByValue(parameters);
  return spline.GetPointer();
}

Transform::Pointer MakeAffine(Noise& noise) {
  auto affine = itk::AffineTransform<double, 3>::New();
  itk::AffineTransform<double, 3>::ParametersType p(12);
  for (int i = 0; i < 9; ++i) p[i] = (i % 4 == 0) + 0.2 * noise();
  for (int i = 9; i < 12; ++i) p[i] = 20 * noise();
  itk::AffineTransform<double, 3>::InputPointType centre;
  for (int c = 0; c < 3; ++c) centre[c] = 50 * noise();
  affine->SetCenter(centre);
  affine->SetParameters(p);
  return affine.GetPointer();
}

// A transform with a centre whose parameters are angles or versors, then millimetres, then a scale.
template <typename T>
typename T::Pointer Turned(Noise& noise) {
  auto transform = T::New();
  typename T::InputPointType centre;
  for (int c = 0; c < 3; ++c) centre[c] = 50 * noise();
  transform->SetCenter(centre);
  typename T::ParametersType p = transform->GetParameters();
  for (unsigned i = 0; i < p.Size(); ++i) p[i] = i < 3 ? 0.4 * noise() : i < 6 ? 20 * noise() : 1.25;
  transform->SetParameters(p);
  return transform;
}

Transform::Pointer Make(const std::string& kind, const Grid& grid) {
  Noise noise;
  if (kind == "affine") return MakeAffine(noise);
  if (kind == "euler") return Turned<itk::Euler3DTransform<double>>(noise).GetPointer();
  if (kind == "euler_zyx") {
    auto euler = Turned<itk::Euler3DTransform<double>>(noise);
    euler->SetComputeZYX(true);
    return euler.GetPointer();
  }
  if (kind == "versor") {
    auto versor = itk::VersorTransform<double>::New();
    itk::VersorTransform<double>::ParametersType p(3);
    for (auto& x : p) x = 0.4 * noise();
    versor->SetParameters(p);
    return versor.GetPointer();
  }
  if (kind == "versor_rigid") return Turned<itk::VersorRigid3DTransform<double>>(noise).GetPointer();
  if (kind == "similarity") return Turned<itk::Similarity3DTransform<double>>(noise).GetPointer();
  if (kind == "scale") {
    auto scale = itk::ScaleTransform<double, 3>::New();
    itk::ScaleTransform<double, 3>::InputPointType centre;
    for (int c = 0; c < 3; ++c) centre[c] = 50 * noise();
    scale->SetCenter(centre);
    itk::ScaleTransform<double, 3>::ParametersType p(3);
    for (auto& x : p) x = 1 + 0.3 * noise();
    scale->SetParameters(p);
    return scale.GetPointer();
  }
  if (kind == "translation") {
    auto translation = itk::TranslationTransform<double, 3>::New();
    itk::TranslationTransform<double, 3>::ParametersType p(3);
    for (auto& x : p) x = 20 * noise();
    translation->SetParameters(p);
    return translation.GetPointer();
  }
  if (kind == "bspline") return MakeSpline(grid, noise);
  if (kind == "displacement") return MakeField(grid, noise);
  auto composite = Composite::New();
  if (kind == "affines") {
    composite->AddTransform(MakeAffine(noise));
    composite->AddTransform(Make("euler", grid));
    composite->AddTransform(Make("similarity", grid));
    return composite.GetPointer();
  }
  if (kind == "affine_bspline" || kind == "affine_displacement") {
    composite->AddTransform(MakeAffine(noise));
    composite->AddTransform(kind == "affine_bspline" ? MakeSpline(grid, noise) : MakeField(grid, noise));
    return composite.GetPointer();
  }
  // The rigid map is applied before the B-spline or the field.
  if (kind == "bspline_rigid" || kind == "displacement_rigid") {
    composite->AddTransform(MakeAffine(noise));
    composite->AddTransform(kind == "bspline_rigid" ? MakeSpline(grid, noise) : MakeField(grid, noise));
    composite->AddTransform(Make("versor_rigid", grid));
    return composite.GetPointer();
  }
  throw std::runtime_error("no such kind");
}

Transform::Pointer ReadTransform(const std::string& path) {
  if (!IsTransformFile(path)) {
    auto field = Field::New();
    field->SetDisplacementField(itk::ReadImage<VectorImage>(path));
    return field.GetPointer();
  }
  auto reader = itk::TransformFileReaderTemplate<double>::New();
  reader->SetFileName(path);
  reader->Update();
  const auto& list = *reader->GetTransformList();
  if (list.size() != 1) throw std::runtime_error("the file holds several transforms");
  return dynamic_cast<Transform*>(list.front().GetPointer());
}

void Map(const std::string& file, const std::string& points, const std::string& out) {
  const Transform::Pointer transform = ReadTransform(file);
  if (transform.IsNull()) throw std::runtime_error("not a transform of three dimensions");
  std::ifstream in(points);
  std::ofstream to(out);
  to << std::setprecision(17);
  for (Transform::InputPointType p; in >> p[0] >> p[1] >> p[2];) {
    const auto q = transform->TransformPoint(p);
    to << q[0] << ' ' << q[1] << ' ' << q[2] << '\n';
  }
}

void WriteMade(const std::string& kind, const std::string& path, const Grid& grid) {
  if (!IsTransformFile(path)) {
    Noise noise;
    itk::WriteImage(MakeImage(grid, noise), path);
    return;
  }
  auto writer = itk::TransformFileWriterTemplate<double>::New();
  writer->SetInput(Make(kind, grid));
  writer->SetFileName(path);
  writer->Update();
}

template <typename Image>
void Copy(const std::string& in, const std::string& out) {
  itk::WriteImage(itk::ReadImage<Image>(in), out);
}

int Run(const std::vector<std::string>& arguments) {
  const size_t count = arguments.size();
  if (count == 4 && arguments[0] == "map") {
    Map(arguments[1], arguments[2], arguments[3]);
  } else if (count == 21 && arguments[0] == "make") {
    Grid grid{};
    for (size_t i = 0; i < 18; ++i) grid.n[i] = std::atof(arguments[3 + i].c_str());
    WriteMade(arguments[1], arguments[2], grid);
  } else if (count == 3 && arguments[0] == "copy") {
    Copy<itk::Image<double, 3>>(arguments[1], arguments[2]);
  } else if (count == 3 && arguments[0] == "copy_field") {
    Copy<itk::Image<itk::Vector<float, 3>, 3>>(arguments[1], arguments[2]);
  } else {
    std::fprintf(stderr, "itk_peer map|make|copy|copy_field ...\n");
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "itk_peer: %s\n", error.what());
    return 1;
  }
}

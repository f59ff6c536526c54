// SPDX-License-Identifier: Apache-2.0
// ITK's diffeomorphic demons (itk::DiffeomorphicDemonsRegistrationFilter, inside its multi-resolution filter), as a
// peer in comparisons.
//
//   itk_demons FIXED MOVING FIELD.mhd LEVELS ITERATIONS FLUID_SIGMA DIFFUSION_SIGMA MAX_STEP
//
// ITERATIONS is the number at each level; sigmas in voxels of the level, 0 for none; MAX_STEP as ITK's
// MaximumUpdateStepLength. Symmetric gradient, Gaussians cut at 3 sigma, everything else by default. FIELD is the
// displacement in LPS mm on the fixed grid. Prints the milliseconds of the registration alone.
#include <itkCastImageFilter.h>
#include <itkDiffeomorphicDemonsRegistrationFilter.h>
#include <itkImageFileReader.h>
#include <itkImageFileWriter.h>
#include <itkMetaImageIOFactory.h>
#include <itkMultiResolutionPDEDeformableRegistration.h>
#include <itkNiftiImageIOFactory.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <vector>

namespace {

using Image = itk::Image<float, 3>;
using Field = itk::Image<itk::Vector<float, 3>, 3>;
using Demons = itk::DiffeomorphicDemonsRegistrationFilter<Image, Image, Field>;
using Pyramid = itk::MultiResolutionPDEDeformableRegistration<Image, Image, Field>;

// ITK's default of 0.1 cuts a Gaussian where it has lost a tenth: a smaller sigma than it was asked for.
constexpr double kKernelError = 0.003;
constexpr unsigned int kKernelWidth = 64;

Image::Pointer Read(const char* path) {
  const auto reader = itk::ImageFileReader<Image>::New();
  reader->SetFileName(path);
  reader->Update();
  return reader->GetOutput();
}

Demons::Pointer MakeDemons(double fluid_sigma, double diffusion_sigma, double max_step) {
  const auto demons = Demons::New();
  demons->SetMaximumError(kKernelError);
  demons->SetMaximumKernelWidth(kKernelWidth);
  demons->SetMaximumUpdateStepLength(max_step);
  demons->SetUseGradientType(itk::ESMDemonsRegistrationFunctionEnums::Gradient::Symmetric);
  demons->SetSmoothUpdateField(fluid_sigma > 0);
  if (fluid_sigma > 0) demons->SetUpdateFieldStandardDeviations(fluid_sigma);
  demons->SetSmoothDisplacementField(diffusion_sigma > 0);
  if (diffusion_sigma > 0) demons->SetStandardDeviations(diffusion_sigma);
  return demons;
}

void Run(char** arguments) {
  const auto registration = Pyramid::New();
  registration->SetFixedImage(Read(arguments[1]));
  registration->SetMovingImage(Read(arguments[2]));
  const int levels = std::atoi(arguments[4]);
  registration->SetRegistrationFilter(
      MakeDemons(std::atof(arguments[6]), std::atof(arguments[7]), std::atof(arguments[8])));
  registration->SetNumberOfLevels(levels);
  std::vector<unsigned int> iterations(levels, static_cast<unsigned int>(std::atoi(arguments[5])));
  registration->SetNumberOfIterations(iterations.data());
  const auto begin = std::chrono::steady_clock::now();
  registration->Update();
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  std::cout << ms << std::endl;

  const auto writer = itk::ImageFileWriter<Field>::New();
  writer->SetFileName(arguments[3]);
  writer->SetInput(registration->GetOutput());
  writer->Update();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::cerr << "itk_demons FIXED MOVING FIELD.mhd LEVELS ITERATIONS FLUID_SIGMA DIFFUSION_SIGMA MAX_STEP\n";
    return 2;
  }
  itk::NiftiImageIOFactory::RegisterOneFactory();
  itk::MetaImageIOFactory::RegisterOneFactory();
  try {
    Run(argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}

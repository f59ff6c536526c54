// SPDX-License-Identifier: Apache-2.0
// A peer of Debian's OpenIGTLink library 1.11 (protocol 2) for transcript.py; it knows nothing of this tree.
//
//   igtl_library_peer PORT SIZE_X SIZE_Y SIZE_Z SPACING VOXELS
//
// Connects to the bridge, sends a message of each kind that the library has and waits for what the bridge makes of it.
// VOXELS is a file of float32; the image is centred on the origin of LPS. Prints a line for each message, "sent" or
// "got", type, device and what the library unpacked, its checksum verified. Exits with 1 when an answer does not come.
#include <igtlClientSocket.h>
#include <igtlImageMessage.h>
#include <igtlMessageHeader.h>
#include <igtlPointMessage.h>
#include <igtlPolyDataMessage.h>
#include <igtlPositionMessage.h>
#include <igtlStatusMessage.h>
#include <igtlStringMessage.h>
#include <igtlTrackingDataMessage.h>
#include <igtlTransformMessage.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <stdexcept>
#include <string>

namespace {

constexpr int kTimeoutMs = 60000;
constexpr int kMostMessages = 2000;

std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string Words(const igtl::Matrix4x4& m) { return Format("position %.2f %.2f %.2f", m[0][3], m[1][3], m[2][3]); }

std::string WordsOf(igtl::ImageMessage* image) {
  int size[3];
  float spacing[3];
  igtl::Matrix4x4 matrix;
  image->GetDimensions(size);
  image->GetSpacing(spacing);
  image->GetMatrix(matrix);
  return Format("%dx%dx%d of %d byte(s), %d component(s), spacing %.2f %.2f %.2f, centre %.2f %.2f %.2f, %s", size[0],
                size[1], size[2], image->GetScalarSize(), image->GetNumComponents(), spacing[0], spacing[1], spacing[2],
                matrix[0][3], matrix[1][3], matrix[2][3],
                image->GetCoordinateSystem() == igtl::ImageMessage::COORDINATE_RAS ? "RAS" : "LPS");
}
std::string WordsOf(igtl::TransformMessage* transform) {
  igtl::Matrix4x4 matrix;
  transform->GetMatrix(matrix);
  return Words(matrix);
}
std::string WordsOf(igtl::PositionMessage* position) {
  float p[3];
  position->GetPosition(p);
  return Format("position %.2f %.2f %.2f", p[0], p[1], p[2]);
}
std::string WordsOf(igtl::TrackingDataMessage* tools) {
  std::string words = Format("%d tool(s)", tools->GetNumberOfTrackingDataElements());
  for (int i = 0; i < tools->GetNumberOfTrackingDataElements(); ++i) {
    igtl::TrackingDataElement::Pointer tool;
    tools->GetTrackingDataElement(i, tool);
    igtl::Matrix4x4 matrix;
    tool->GetMatrix(matrix);
    words += Format("; %s, ", tool->GetName()) + Words(matrix);
  }
  return words;
}
std::string WordsOf(igtl::PointMessage* points) {
  igtl::PointElement::Pointer first;
  points->GetPointElement(0, first);
  float p[3];
  first->GetPosition(p);
  return Format("%d point(s); %s, position %.2f %.2f %.2f", points->GetNumberOfPointElement(), first->GetName(), p[0],
                p[1], p[2]);
}
std::string WordsOf(igtl::PolyDataMessage* mesh) {
  float p[3];
  mesh->GetPoints()->GetPoint(0, p);
  return Format("%d point(s), %u polygon(s); first at %.2f %.2f %.2f", mesh->GetPoints()->GetNumberOfPoints(),
                mesh->GetPolygons()->GetNumberOfCells(), p[0], p[1], p[2]);
}
std::string WordsOf(igtl::StringMessage* string) { return Format("\"%.100s\"", string->GetString()); }
std::string WordsOf(igtl::StatusMessage* status) {
  return Format("code %d, \"%s\", \"%.100s\"", status->GetCode(), status->GetErrorName(), status->GetStatusString());
}

class Peer {
 public:
  explicit Peer(int port) : socket_(igtl::ClientSocket::New()) {
    if (socket_->ConnectToServer("127.0.0.1", port) != 0) throw std::runtime_error("no connection");
    socket_->SetReceiveTimeout(kTimeoutMs);
  }
  ~Peer() { socket_->CloseSocket(); }

  template <typename T>
  void Send(const char* device, T* message, const std::string& words) {
    message->SetDeviceName(device);
    message->Pack();
    if (socket_->Send(message->GetPackPointer(), message->GetPackSize()) == 0) throw std::runtime_error("cannot send");
    std::printf("sent | %s | %s | %s\n", message->GetDeviceType(), device, words.c_str());
  }

  // Reads on until the message is there.
  template <typename T>
  void Expect(const char* type, const char* device) {
    for (int i = 0; i < kMostMessages; ++i) {
      igtl::MessageHeader::Pointer header = igtl::MessageHeader::New();
      header->InitPack();
      Read(header->GetPackPointer(), header->GetPackSize());
      if ((header->Unpack() & igtl::MessageHeader::UNPACK_HEADER) == 0) throw std::runtime_error("a wrong header");
      if (std::strcmp(header->GetDeviceType(), type) != 0 || std::strcmp(header->GetDeviceName(), device) != 0) {
        socket_->Skip(header->GetBodySizeToRead(), 0);
        continue;
      }
      typename T::Pointer message = T::New();
      message->SetMessageHeader(header);
      message->AllocatePack();
      Read(message->GetPackBodyPointer(), message->GetPackBodySize());
      if ((message->Unpack(1) & igtl::MessageHeader::UNPACK_BODY) == 0) {
        throw std::runtime_error(std::string("a wrong checksum or content: ") + type);
      }
      std::printf("got | %s | %s | %s\n", type, device, WordsOf(message.GetPointer()).c_str());
      return;
    }
    throw std::runtime_error(std::string("no ") + type + " of " + device);
  }

 private:
  void Read(void* to, int bytes) {
    if (socket_->Receive(to, bytes) != bytes) throw std::runtime_error("the bridge is silent, or has closed");
  }

  igtl::ClientSocket::Pointer socket_;
};

void Pose(igtl::Matrix4x4& matrix) {
  igtl::IdentityMatrix(matrix);
  matrix[0][3] = 5, matrix[1][3] = 3, matrix[2][3] = -4;
}

template <typename T>
void SendAndExpect(Peer& peer, const char* type, const std::string& device, T* message) {
  const std::string words = WordsOf(message);
  peer.Send(device.c_str(), message, words);
  peer.Expect<T>(type, (device + "Mapped").c_str());
}

igtl::ImageMessage::Pointer Image(const int size[3], float spacing, const char* file) {
  igtl::ImageMessage::Pointer image = igtl::ImageMessage::New();
  image->SetDimensions(size[0], size[1], size[2]);
  image->SetSpacing(spacing, spacing, spacing);
  image->SetScalarType(igtl::ImageMessage::TYPE_FLOAT32);
  image->SetCoordinateSystem(igtl::ImageMessage::COORDINATE_LPS);
  image->SetEndian(igtl::ImageMessage::ENDIAN_LITTLE);
  image->SetSubVolume(size[0], size[1], size[2], 0, 0, 0);
  image->AllocateScalars();
  std::ifstream in(file, std::ios::binary);
  if (!in.read(static_cast<char*>(image->GetScalarPointer()), image->GetImageSize())) {
    throw std::runtime_error("VOXELS is too short");
  }
  // Its first voxel lies where the moving image of bridge_test.py has its own.
  igtl::Matrix4x4 matrix;
  igtl::IdentityMatrix(matrix);
  for (int axis = 0; axis < 3; ++axis) matrix[axis][3] = -spacing / 2;
  image->SetMatrix(matrix);
  return image;
}

void SendAll(Peer& peer, igtl::ImageMessage* image) {
  peer.Send("Scanner", image, WordsOf(image));
  peer.Expect<igtl::TransformMessage>("TRANSFORM", "IntrawarpAffine");
  peer.Expect<igtl::ImageMessage>("IMAGE", "IntrawarpField");
  peer.Expect<igtl::ImageMessage>("IMAGE", "IntrawarpWarped");

  igtl::Matrix4x4 matrix;
  Pose(matrix);
  igtl::TransformMessage::Pointer transform = igtl::TransformMessage::New();
  transform->SetMatrix(matrix);
  SendAndExpect(peer, "TRANSFORM", "Stylus", transform.GetPointer());
  igtl::PositionMessage::Pointer position = igtl::PositionMessage::New();
  position->SetPackType(igtl::PositionMessage::ALL);
  position->SetPosition(5, 3, -4);
  position->SetQuaternion(0, 0, 0, 1);
  SendAndExpect(peer, "POSITION", "Probe", position.GetPointer());
  igtl::TrackingDataElement::Pointer tool = igtl::TrackingDataElement::New();
  tool->SetName("Needle");
  tool->SetType(igtl::TrackingDataElement::TYPE_6D);
  tool->SetMatrix(matrix);
  igtl::TrackingDataMessage::Pointer tools = igtl::TrackingDataMessage::New();
  tools->AddTrackingDataElement(tool);
  SendAndExpect(peer, "TDATA", "Tracker", tools.GetPointer());
  igtl::PointElement::Pointer point = igtl::PointElement::New();
  point->SetName("Target");
  point->SetPosition(5, 3, -4);
  igtl::PointMessage::Pointer points = igtl::PointMessage::New();
  points->AddPointElement(point);
  SendAndExpect(peer, "POINT", "Targets", points.GetPointer());
  igtl::PolyDataMessage::Pointer mesh = igtl::PolyDataMessage::New();
  igtl::PolyDataPointArray::Pointer corners = igtl::PolyDataPointArray::New();
  for (int i = 0; i < 3; ++i) corners->AddPoint(static_cast<float>(5 + i), 3, -4);
  igtl::PolyDataCellArray::Pointer cells = igtl::PolyDataCellArray::New();
  cells->AddCell(std::list<igtlUint32>{0, 1, 2});
  mesh->SetPoints(corners);
  mesh->SetPolygons(cells);
  SendAndExpect(peer, "POLYDATA", "Organ", mesh.GetPointer());

  igtl::StringMessage::Pointer string = igtl::StringMessage::New();
  string->SetString("status");
  peer.Send("IntrawarpCtl", string.GetPointer(), WordsOf(string.GetPointer()));
  peer.Expect<igtl::StringMessage>("STRING", "IntrawarpCtl");
  igtl::GetStatusMessage::Pointer question = igtl::GetStatusMessage::New();
  peer.Send("Slicer", question.GetPointer(), "");
  peer.Expect<igtl::StatusMessage>("STATUS", "IntrawarpStatus");
  image->SetNumComponents(3);
  image->SetDimensions(2, 2, 2);
  image->SetSubVolume(2, 2, 2, 0, 0, 0);
  image->AllocateScalars();
  peer.Send("Scanner", image, WordsOf(image));
  peer.Expect<igtl::StatusMessage>("STATUS", "IntrawarpError");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "igtl_library_peer PORT SIZE_X SIZE_Y SIZE_Z SPACING VOXELS\n");
    return 2;
  }
  try {
    const int size[3] = {std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])};
    const igtl::ImageMessage::Pointer image = Image(size, static_cast<float>(std::atof(argv[5])), argv[6]);
    Peer peer(std::atoi(argv[1]));
    SendAll(peer, image.GetPointer());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "igtl_library_peer: %s\n", error.what());
    return 1;
  }
  return 0;
}

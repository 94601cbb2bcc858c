"""The messages of the stream, made of the description beside this file. `make proto` writes that and their types."""

from pathlib import Path

from google.protobuf import descriptor_pool, timestamp_pb2  # noqa: F401 - the description names timestamp's messages
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.internal import builder

(_FILE,) = FileDescriptorSet.FromString(Path(__file__).with_name("trading.desc").read_bytes()).file
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(_FILE.SerializeToString())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())

# Receives profiles of OpenTelemetry by the official protobufs. Prints its port, and for each
# request a line of JSON. `python otlp_server.py STATUS REJECTED`
import gzip, json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service

status, rejected = int(sys.argv[1]), int(sys.argv[2])


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def told(request):
    tables = request.dictionary
    for table in ("mapping", "location", "function", "link", "attribute", "stack"):
        first = getattr(tables, table + "_table")[0]
        assert not first.ListFields(), table
    texts = tables.string_table
    assert texts[0] == ""

    def attributes(places):
        entries = [tables.attribute_table[place] for place in places]
        return {texts[entry.key_strindex]: value(entry.value) for entry in entries}

    def frame(place):
        location = tables.location_table[place]
        function = tables.function_table[location.lines[0].function_index]
        mapping = tables.mapping_table[location.mapping_index]
        file = texts[mapping.filename_strindex]
        return [texts[function.name_strindex], file, attributes(location.attribute_indices)]

    resource = request.resource_profiles[0]
    profile = resource.scope_profiles[0].profiles[0]
    return {
        "host": {entry.key: value(entry.value) for entry in resource.resource.attributes},
        "type": texts[profile.sample_type.type_strindex],
        "time": profile.time_unix_nano,
        "nanoseconds": profile.duration_nano,
        "id": profile.profile_id.hex(),
        "ledger": attributes(profile.attribute_indices),
        "samples": [
            {
                "count": sum(sample.values),
                "thread": attributes(sample.attribute_indices),
                "stack": [
                    frame(place)
                    for place in tables.stack_table[sample.stack_index].location_indices
                ],
            }
            for sample in profile.samples
        ],
    }


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/x-protobuf"
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = service.ExportProfilesServiceRequest.FromString(body)
        print(json.dumps({"path": self.path, **told(request)}), flush=True)
        answer = service.ExportProfilesServiceResponse()
        if rejected:
            answer.partial_success.rejected_profiles = rejected
            answer.partial_success.error_message = "no \x1b[31mroom"
        answer = answer.SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.serve_forever()

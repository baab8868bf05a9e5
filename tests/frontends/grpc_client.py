"""A client of gRPC with the messages of smg-grpc-proto: prints a JSON line for each call.

    python3 grpc_client.py HOST:PORT
"""

import json
import sys
import threading
import time

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as services


def tell(call, **fields):
    print(json.dumps({"call": call, **fields}), flush=True)


def params(temperature=0.0, **fields):
    return pb.SamplingParams(temperature=temperature, ignore_eos=True, **fields)


def answers(stub, **fields):
    chunks, complete = [], []
    for answer in stub.Generate(pb.GenerateRequest(**fields)):
        kind = answer.WhichOneof("response")
        (chunks if kind == "chunk" else complete).append(getattr(answer, kind))
    return chunks, complete


def failure(function):
    try:
        function()
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return None


def main():
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = services.VllmEngineStub(channel)
        health = stub.HealthCheck(pb.HealthCheckRequest())
        tell("health", healthy=health.healthy)
        model = stub.GetModelInfo(pb.GetModelInfoRequest())
        tell("model", name=model.served_model_name, context=model.max_context_length, generates=model.is_generation)
        tokens = pb.TokenizedInput(input_ids=list(range(40)))

        _, [whole] = answers(stub, request_id="whole", tokenized=tokens, sampling_params=params(max_tokens=6, logprobs=2))
        tell(
            "whole",
            tokens=list(whole.output_ids),
            reason=whole.finish_reason,
            counts=[whole.prompt_tokens, whole.completion_tokens],
            logprobs=[len(whole.output_logprobs.token_logprobs), len(whole.output_logprobs.top_logprobs[0].values)],
        )
        chunks, [complete] = answers(
            stub, request_id="stream", tokenized=tokens, sampling_params=params(max_tokens=6), stream=True
        )
        tell("stream", tokens=[token for chunk in chunks for token in chunk.token_ids], reason=complete.finish_reason)
        _, several = answers(stub, text="Say it twice.", sampling_params=params(max_tokens=3, n=2, temperature=1.0))
        tell("several", indexes=sorted(answer.index for answer in several))

        ended = []
        endless = {"request_id": "endless", "tokenized": tokens, "sampling_params": params(max_tokens=4000)}
        waiting = threading.Thread(target=lambda: ended.append(answers(stub, **endless)))
        waiting.start()
        while stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests == 0:
            time.sleep(0.01)
        stub.Abort(pb.AbortRequest(request_ids=["endless", "unknown"]))
        waiting.join()
        tell("abort", reason=ended[0][1][0].finish_reason)

        embedding = stub.Embed(pb.EmbedRequest(request_id="vector", tokenized=tokens))
        tell("embed", numbers=len(embedding.embedding), dim=embedding.embedding_dim, prompt=embedding.prompt_tokens)
        too_long = pb.TokenizedInput(input_ids=[1] * (model.max_context_length + 1))
        tell("too long", error=failure(lambda: answers(stub, tokenized=too_long, sampling_params=params())))
        tell("no input", error=failure(lambda: answers(stub, sampling_params=params())))
        tell("unknown", error=failure(lambda: stub.GetLoads(pb.GetLoadsRequest())))
        server = stub.GetServerInfo(pb.GetServerInfoRequest())
        tell(
            "server",
            active=server.active_requests,
            paused=server.is_paused,
            type=server.server_type,
            is_recent=time.time() - server.last_receive_timestamp < 60,
        )
        # Cancelled by its client.
        call = stub.Generate(pb.GenerateRequest(**endless, stream=True))
        next(iter(call))
        call.cancel()
        while stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests > 0:
            time.sleep(0.01)
        tell("cancel")
    time.sleep(60)


main()

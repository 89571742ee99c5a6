"""The client of a b4run server, synchronous and asynchronous: threads, runs, uploads, and a checked view of a thread's workspace.

    with Client("https://agents.example.com", headers={"authorization": "Bearer …"}) as client:
        client.upload_source(bundle)
        thread = client.create_thread(workspace=StagedReference(bundle.digest))
        state = client.run(thread["thread_id"], "/fix#agent", "Make the tests pass.")

Redirects are refused, for they would carry the credentials away. Nothing is sent twice but what the server says it did not begin.
"""

from b4run.client.blocking import Client
from b4run.client.concurrent import AsyncClient
from b4run.client.flows import ClientError, StreamEvent, ThreadWorkspace

__all__ = ["AsyncClient", "Client", "ClientError", "StreamEvent", "ThreadWorkspace"]

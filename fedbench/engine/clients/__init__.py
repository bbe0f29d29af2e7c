"""What clients keep between rounds: a table with a row a client.

`store` is the table as the engine sees it: clients' leaves are taken and put, checkpointed, restored. Below it,
`layout` says where a leaf lies in a row of bytes, `rows` holds the rows, in a tensor or in a mapped file, and `storage`
chooses which of them has room.
"""

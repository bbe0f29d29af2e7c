"""What DomainNet (cleaned) consists of: its domains, how much is in their lists, and where the files come from."""

from __future__ import annotations

from fedbench.data.download import Remote
from fedbench.data.file_source import Part

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SPLITS = ("train", "test")
LISTED = {  # images in a domain's training and test list
    "clipart": (33_525, 14_604),
    "infograph": (36_023, 15_582),
    "painting": (50_416, 21_850),
    "quickdraw": (120_750, 51_750),
    "real": (120_906, 52_041),
    "sketch": (48_212, 20_916),
}
SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
MD5 = {  # of the images, the training and the test list: as independent public loaders agree on them
    "clipart": (
        "cd0d8f2d77a4e181449b78ed62bccf1e",
        "b4349693a7f9c05c53955725c47ed6cb",
        "f5ddbcfd657a3acf9d0f7da10db22565",
    ),
    "infograph": (
        "720380b86f9e6ab4805bb38b6bd135f8",
        "379b50054f4ac2018dca4f89421b92d9",
        "779626b50869edffe8ea6941c3755c71",
    ),
    "painting": (
        "1ae32cdb4f98fe7ab5eb0a351768abfd",
        "7db0e7ca73ad9982f6e1f7f3ef372c0a",
        "232b35dc53f26d414686ae579e38d9b5",
    ),
    "quickdraw": (
        "bdc1b6f09f277da1a263389efe0c7a66",
        "b732ced3939ac8efdd8c0a889dca56cc",
        "c1a828fdfe216fb109f1c0083a252c6f",
    ),
    "real": (
        "dcc47055e8935767784b7162e7c7cca6",
        "8ebf02c2075fadd564705f0dc7cd6291",
        "6098816791c3ebed543c71ffa11b9054",
    ),
    "sketch": (
        "658d8009644040ff7ce30bb2e820850f",
        "1233bd18aa9a8a200bf4cecf1c34ef3e",
        "d8a222e4672cfd585298aa14d02ea441",
    ),
}


def parts() -> tuple[Part, ...]:
    """The archive of images and the two lists of every domain."""
    found = []
    for domain, (images, *lists) in MD5.items():
        cleaned = "/groundtruth" if domain in ("clipart", "painting") else ""
        url = f"{SITE}{cleaned}/{domain}.zip"
        found.append(Part(Remote((url,), f"{domain}.zip", images), f"domainnet/{domain}"))
        for split, md5 in zip(SPLITS, lists, strict=True):
            name = f"{domain}_{split}.txt"
            remote = Remote((f"{SITE}/domainnet/txt/{name}",), name, md5)
            found.append(Part(remote, f"domainnet/{name}", archive=False))
    return tuple(found)

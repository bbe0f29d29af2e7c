"""FedReMa: maximum difference segmentation and relevant peers."""

# Prints a manifest without what make undeploy keeps: the definitions, and with them all objects of their kinds; the claim with the journal, from
# which Turns go on when the manager is installed again; and the Namespace, whose deletion would take the claim.
BEGIN { RS = "---\n"; ORS = "---\n" }
!/(^|\n)kind: (CustomResourceDefinition|PersistentVolumeClaim|Namespace)\n/
